//! The kernels of recurrences with a matrix for a state.

use std::error::Error;

use riverrun_kernels::gpu::Dtype;
use riverrun_testkit::Case;
use riverrun_testkit::matrix_state::{Erase, Form, Gate, Options, States};

use super::Writer;

/// The delta rule and no erase, by steps and, where the card has them, on tensor cores.
pub fn write(writer: &mut Writer) -> Result<(), Box<dyn Error>> {
    for (n, erase) in [Erase::None, Erase::Key].into_iter().enumerate() {
        let launches = [
            (Gate::Head, 40, true),
            (Gate::Head, 128, false),
            (Gate::Row, 128, false),
        ];
        for (gate, steps, reset) in launches {
            let form = Form {
                gate,
                erase,
                bonus: false,
            };
            let options = Options {
                initial: true,
                reset,
                d_last: true,
                correlated: false,
                weak: false,
            };
            let dtype = [Dtype::F16, Dtype::Bf16][n];
            // On the smallest cards bf16 does not exist.
            if !dtype.supported(&writer.recorder.client) {
                continue;
            }
            let (group, size) = ([1, 2][n], [64, 128][n]);
            let case = States::random([1, steps, 16, 16 * group, size, size], form, options, 1);
            let tensor = case.on_tensor_cores(&writer.recorder.client, dtype);
            let routine = if tensor { "tensor" } else { "steps" };
            let rows = if gate == Gate::Row { "rows-" } else { "" };
            let place = format!("matrix-state/{rows}{routine}-{size}-{}", dtype.name());
            writer.write(&place, |client| case.gpu(client, dtype).map(drop))?;
        }
    }
    Ok(())
}
