//! The kernels of attention.

use std::error::Error;

use riverrun_kernels::gpu::Dtype;
use riverrun_testkit::attention::check::{Case, Options};
use riverrun_testkit::attention::step::Step;
use riverrun_testkit::attention::{Shape, gpu};

use riverrun_testkit::Case as _;

use super::Writer;

/// By plain units and on tensor cores, with tiles for few channels, many, and the most; single steps.
pub fn write(writer: &mut Writer) -> Result<(), Box<dyn Error>> {
    let client = writer.recorder.client.clone();
    for (n, dim) in [64, 128, 256].into_iter().enumerate() {
        for dtype in Dtype::ALL {
            // A sample has the smallest and the largest, each in one of the types, by the form that the card has for it.
            let wanted = dtype == [Dtype::Bf16, Dtype::F32, Dtype::F16][n] && dim != 128;
            if !dtype.supported(&client) || (writer.sample && !wanted) {
                continue;
            }
            // All options for the smallest, the plain ones of training for the largest.
            let options = Options::nth([15, 1, 3][n], 128);
            let case = Case::random(Shape::same(1, 128, 1, dim), options, 1);
            let form = match gpu::tensor_cores(&client, &case.problem, dtype) {
                true => "tensor",
                false => "units",
            };
            let place = format!("attention/{form}-{dim}-{}", dtype.name());
            writer.write(&place, |client| case.gpu(client, dtype, None).map(drop))?;
            let step = Step::random([1, 2, 1, dim, 128, 0], n, 1);
            let place = format!("attention/step-{dim}-{}", dtype.name());
            writer.write(&place, |client| step.gpu(client, dtype).map(drop))?;
        }
    }
    Ok(())
}
