//! The kernels of recurrences with a matrix for a state.

use std::error::Error;

use riverrun_kernels::gpu::Dtype;
use riverrun_testkit::Case;
use riverrun_testkit::matrix_state::{Erase, Form, Gate, Options, States, in_segments};

use super::Writer;

/// By steps and, where the card has them, on tensor cores, without an erase, with the delta rule and with a separate erase, and the
/// delta rule in segments.
pub fn write(writer: &mut Writer) -> Result<(), Box<dyn Error>> {
    let small = (Dtype::F16, 1, 64);
    let large = (Dtype::Bf16, 2, 128);
    let launches = [
        (Erase::None, Gate::Head, 40, true, small),
        (Erase::None, Gate::Head, 128, false, small),
        (Erase::None, Gate::Row, 128, false, small),
        (Erase::Key, Gate::Head, 40, true, large),
        (Erase::Key, Gate::Head, 128, false, large),
        (Erase::Key, Gate::Row, 128, false, large),
        (Erase::Separate, Gate::Row, 128, false, small),
    ];
    for (erase, gate, steps, reset, (dtype, group, size)) in launches {
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
        let case = States::random([1, steps, 16, 16 * group, size, size], form, options, 1);
        let kind = match (erase, gate) {
            (Erase::Separate, _) => "separate-",
            (_, Gate::Row) => "rows-",
            _ => "",
        };
        write_case(writer, &case, dtype, kind)?;
    }
    let case = in_segments(Erase::Key).ok_or("no case")?;
    write_case(writer, &case, Dtype::F16, "segments-")
}

fn write_case(
    writer: &mut Writer,
    case: &States,
    dtype: Dtype,
    kind: &str,
) -> Result<(), Box<dyn Error>> {
    // On the smallest cards bf16 does not exist.
    if !dtype.supported(&writer.recorder.client) {
        return Ok(());
    }
    let tensor = case.on_tensor_cores(&writer.recorder.client, dtype);
    let routine = if tensor { "tensor" } else { "steps" };
    let size = case.problem.shape.key;
    let place = format!("matrix-state/{kind}{routine}-{size}-{}", dtype.name());
    writer.write(&place, |client| case.gpu(client, dtype).map(drop))
}
