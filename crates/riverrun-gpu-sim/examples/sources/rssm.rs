//! The kernels of an RSSM's step.

use std::error::Error;

use riverrun_kernels::gpu::Dtype;
use riverrun_kernels::rssm::{Blocks, Draw, gpu};

use super::Writer;

pub fn write(writer: &mut Writer) -> Result<(), Box<dyn Error>> {
    let blocks = Blocks {
        batch: 2,
        blocks: 2,
        width: 4,
    };
    let draw = Draw {
        rows: 4,
        classes: 4,
        unimix: 0.01,
    };
    for dtype in Dtype::ALL {
        writer.write(&format!("rssm/step-{}", dtype.name()), |client| {
            let [x, y, d_x] = [0, 1, 2].map(|_| client.empty(16 * dtype.size()));
            let [gates, d_gates] = [0, 1].map(|_| client.empty(48 * dtype.size()));
            gpu::activate(client, dtype, blocks, &x, &y)?;
            gpu::activate_backward(client, dtype, blocks, [&x, &y], &d_x)?;
            gpu::step(client, dtype, blocks, [&gates, &x], &y)?;
            let given = [&gates, &x, &y];
            gpu::step_backward(client, dtype, blocks, given, [&d_gates, &d_x])
        })?;
        writer.write(&format!("rssm/draw-{}", dtype.name()), |client| {
            let [x, y, d_x] = [0, 1, 2].map(|_| client.empty(16 * dtype.size()));
            let noise = client.empty(16 * Dtype::F32.size());
            gpu::draw(client, dtype, draw, &x, (&noise, 0), &y)?;
            gpu::draw_backward(client, dtype, draw, [&x, &y], &d_x)
        })?;
    }
    Ok(())
}
