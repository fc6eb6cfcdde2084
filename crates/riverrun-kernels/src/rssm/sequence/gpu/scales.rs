//! The scales of the norms' inputs, for the backward pass.

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::norm::scale;
use crate::gpu::full_plane::shuffle_xor;

/// `1 / √(mean x² + ε)` of each of the `rows` of `x`, `[rows, width]`, to `first` of `scales` on. Cubes of a plane, at least one for each
/// row.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn row_scales<F: Float>(
    x: &[F],
    scales: &mut [f32],
    rows: usize,
    first: usize,
    epsilon: f32,
    #[comptime] width: usize,
    #[define(F)] _dtype: ElemType,
) {
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let mut sum = 0.0f32;
    let mut k = UNIT_POS as usize;
    while k < width {
        let number = f32::cast_from(x[row * width + k]);
        sum += number * number;
        k += 32;
    }
    #[unroll]
    for bit in 0..5u32 {
        sum += shuffle_xor(sum, comptime!(1u32 << bit));
    }
    if UNIT_POS == 0 {
        scales[first + row] = scale(sum, epsilon, width);
    }
}
