//! [`clip`](super::super::clip) on GPUs: one thread, and nothing read back.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::Error;
use crate::adamw::clip::{EPSILON, MOST, PATIENCE, SCALE_NUMBERS};
use crate::gpu::{buffer, expect};

/// The exponent of numbers that are not finite.
const NOT_FINITE: u32 = 0x7f80_0000;

#[cube(launch_unchecked)]
fn clip_factor(
    squares: &[f32],
    scale: &mut Sequence<Box<[f32]>>,
    factor: &mut [f32],
    bound: f32,
    #[comptime] scaled: bool,
) {
    if ABSOLUTE_POS == 0 {
        let sum = squares[0];
        // By its bits: compilers may take every number to be finite.
        let bits = u32::reinterpret(sum);
        let finite = (bits & NOT_FINITE) != NOT_FINITE;
        let epsilon = f32::new(comptime!(EPSILON as f32));
        if comptime!(scaled) {
            let scale = scale.index_mut(0usize);
            let by = scale[0];
            if finite {
                let norm = sum.sqrt() / by;
                factor[0] = min(bound / (norm + epsilon), 1.0f32) / by;
                let streak = scale[1] + 1.0f32;
                let grown = streak >= f32::new(comptime!(PATIENCE as f32));
                let doubled = min(by * 2.0f32, f32::new(comptime!(MOST as f32)));
                scale[0] = select(grown, doubled, by);
                scale[1] = select(grown, 0.0f32, streak);
            } else {
                factor[0] = 0.0f32;
                scale[0] = max(by * 0.5f32, 1.0f32);
                scale[1] = 0.0f32;
                scale[2] += 1.0f32;
            }
        } else if finite {
            factor[0] = min(bound / (sum.sqrt() + epsilon), 1.0f32);
        } else {
            factor[0] = f32::reinterpret(bits | 0x7fc0_0000u32);
        }
    }
}

/// Writes the factor of gradients, `[1]`, from the sum of their squares, `[1]`, and adapts the loss scale, if present: its
/// [numbers](crate::adamw::clip::Scale::numbers). All in `f32`.
///
/// # Errors
/// [`Error::Length`]; nothing has been launched then.
pub fn clip(
    client: &Client,
    squares: &Handle,
    bound: f32,
    scale: Option<&Handle>,
    factor: &Handle,
) -> Result<(), Error> {
    let buffers = [
        ("squares", Some(squares), 1),
        ("scale", scale, SCALE_NUMBERS),
        ("factor", Some(factor), 1),
    ];
    expect(4, buffers)?;
    let scales: Vec<BufferArg> = scale
        .into_iter()
        .map(|scale| buffer(scale, SCALE_NUMBERS, 1))
        .collect();
    // SAFETY: the buffers have been checked.
    unsafe {
        clip_factor::launch_unchecked(
            client,
            CubeCount::Static(1, 1, 1),
            CubeDim::new_1d(1),
            buffer(squares, 1, 1),
            scales.into_iter().collect(),
            buffer(factor, 1, 1),
            bound,
            scale.is_some(),
        );
    }
    Ok(())
}
