//! The kernels of attention.

use std::error::Error;

use riverrun_kernels::attention::check::{Case, Options};
use riverrun_kernels::attention::{Shape, gpu};
use riverrun_kernels::gpu::Dtype;

use super::Writer;

/// By plain units and on tensor cores, with tiles for few channels, many, and the most.
pub fn write(writer: &mut Writer) -> Result<(), Box<dyn Error>> {
    let client = writer.recorder.client.clone();
    for (n, dim) in [64, 128, 256].into_iter().enumerate() {
        for dtype in Dtype::ALL {
            // In a sample each size has one of the types, and the smallest has `f32` too, which plain units compute.
            let wanted = dtype == [Dtype::Bf16, Dtype::F16, Dtype::Bf16][n]
                || (dtype == Dtype::F32 && n == 0);
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
        }
    }
    Ok(())
}
