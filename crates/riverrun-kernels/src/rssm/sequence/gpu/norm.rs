//! The norm of an input with its activation, `silu(x γ / √(mean x² + ε))`, on what the threads of a product have read; and its
//! gradient.

use cubecl::prelude::*;

use super::product::{Product, Quad, depth_of, numbers, word};
use crate::gpu::full_plane::shuffle_xor;
use crate::gpu::math::sigmoid;
use crate::gpu::words::Pair;

/// Leaves the plane's sum of squares of each sequence in `norms`, `[planes, sequences]`.
#[cube]
pub(super) fn leave_squares(
    quads: &Array<Quad>,
    norms: &mut [f32],
    #[comptime] first: usize,
    #[comptime] count: usize,
    #[comptime] cols: usize,
    #[comptime] product: Product,
) {
    #[unroll]
    for n in 0..cols {
        let mut sum = 0.0f32;
        #[unroll]
        for p in 0..count {
            #[unroll]
            for i in 0..4usize {
                let quad = quads[comptime!(n * count + p)];
                let pair = numbers(quad.extract(i), product.storage);
                let squares = pair * pair;
                sum += squares.extract(0usize) + squares.extract(1usize);
            }
        }
        sum += shuffle_xor(sum, 1u32);
        sum += shuffle_xor(sum, 2u32);
        if UNIT_POS_X % 4 == 0 {
            let sequence = n * 8 + UNIT_POS_X as usize / 4;
            norms[first + UNIT_POS_Y as usize * comptime!(8 * cols) + sequence] = sum;
        }
    }
}

/// The sum over planes for the thread's sequence of column `n`.
#[cube]
fn row_sum(
    norms: &[f32],
    #[comptime] first: usize,
    #[comptime] n: usize,
    #[comptime] cols: usize,
    #[comptime] product: Product,
) -> f32 {
    let sequence = comptime!(n * 8) + UNIT_POS_X as usize / 4;
    let mut sum = 0.0f32;
    #[unroll]
    for plane in 0..comptime!(product.planes) {
        sum += norms[comptime!(first + plane * 8 * cols) + sequence];
    }
    sum
}

/// `1 / √(mean x² + ε)` of the thread's sequences, from what the planes left.
#[cube]
pub(super) fn scales(
    norms: &[f32],
    epsilon: f32,
    #[comptime] first: usize,
    #[comptime] cols: usize,
    #[comptime] product: Product,
) -> Array<f32> {
    let mut scales = Array::<f32>::new(cols);
    #[unroll]
    for n in 0..cols {
        scales[n] = scale(
            row_sum(norms, first, n, cols, product),
            epsilon,
            product.depth,
        );
    }
    scales
}

/// `1 / √(squares / numbers + ε)`.
#[cube]
pub(super) fn scale(squares: f32, epsilon: f32, #[comptime] numbers: usize) -> f32 {
    1.0f32 / (squares / comptime!(numbers as f32) + epsilon).sqrt()
}

/// Replaces each number `x` by `silu(x · scale · γ)`; `gamma` from its quad `from` on.
#[cube]
pub(super) fn activate(
    quads: &mut Array<Quad>,
    gamma: &[Quad],
    from: usize,
    scales: &Array<f32>,
    #[comptime] count: usize,
    #[comptime] cols: usize,
    #[comptime] product: Product,
) {
    #[unroll]
    for p in 0..count {
        let weights = gamma_of(gamma, from, p, product);
        #[unroll]
        for n in 0..cols {
            let at = comptime!(n * count + p);
            let quad = quads[at];
            let mut result = Quad::new(0u32);
            #[unroll]
            for i in 0..4usize {
                let x = numbers(quad.extract(i), product.storage);
                let g = numbers(weights.extract(i), product.storage);
                let y = x * Pair::new(scales[n]) * g;
                let y = y * sigmoid::<Const<2>>(y, true);
                result.insert(i, word(y, product.storage));
            }
            quads[at] = result;
        }
    }
}

/// The derivative of `silu(x · scale · γ)` by `x · scale`.
#[cube]
pub(super) fn slope(x: Pair, gamma: Pair, scale: f32) -> Pair {
    let y = x * Pair::new(scale) * gamma;
    let s = sigmoid::<Const<2>>(y, true);
    let rest = sigmoid::<Const<2>>(Pair::new(0.0f32) - y, true);
    (s + y * s * rest) * gamma
}

/// The thread's quad of γ for block `p`, with γ from its quad `from` on.
#[cube]
fn gamma_of(
    gamma: &[Quad],
    from: usize,
    #[comptime] p: usize,
    #[comptime] product: Product,
) -> Quad {
    let k = depth_of(p, product);
    let mut weights = Quad::new(0u32);
    if k < comptime!(product.depth) {
        weights = gamma[from + k / comptime!(product.quad())];
    }
    weights
}

/// Leaves the plane's sums of `x · ∂(x scale)` in `norms`, `[planes, sequences]`; `d`: the gradient of the activated norm of `x`.
#[cube]
pub(super) fn leave_dots(
    x: &Array<Quad>,
    d: &Array<Quad>,
    gamma: &[Quad],
    scales: &Array<f32>,
    norms: &mut [f32],
    #[comptime] count: usize,
    #[comptime] cols: usize,
    #[comptime] product: Product,
) {
    let mut sums = Array::<f32>::new(cols);
    #[unroll]
    for n in 0..cols {
        sums[n] = 0.0f32;
    }
    #[unroll]
    for p in 0..count {
        let weights = gamma_of(gamma, 0usize, p, product);
        #[unroll]
        for n in 0..cols {
            let (of_x, of_d) = (x[comptime!(n * count + p)], d[comptime!(n * count + p)]);
            #[unroll]
            for i in 0..4usize {
                let x = numbers(of_x.extract(i), product.storage);
                let g = numbers(weights.extract(i), product.storage);
                let d = numbers(of_d.extract(i), product.storage);
                let terms = x * d * slope(x, g, scales[n]);
                sums[n] += terms.extract(0usize) + terms.extract(1usize);
            }
        }
    }
    #[unroll]
    for n in 0..cols {
        let mut sum = sums[n];
        sum += shuffle_xor(sum, 1u32);
        sum += shuffle_xor(sum, 2u32);
        if UNIT_POS_X % 4 == 0 {
            let sequence = n * 8 + UNIT_POS_X as usize / 4;
            norms[UNIT_POS_Y as usize * comptime!(8 * cols) + sequence] = sum;
        }
    }
}

/// Replaces the gradient of the activated norm of `x` by that of `x`, with what the planes left.
#[cube]
pub(super) fn normalize_back(
    x: &Array<Quad>,
    d: &mut Array<Quad>,
    gamma: &[Quad],
    scales: &Array<f32>,
    norms: &[f32],
    #[comptime] count: usize,
    #[comptime] cols: usize,
    #[comptime] product: Product,
) {
    #[unroll]
    for n in 0..cols {
        let dot = row_sum(norms, 0usize, n, cols, product);
        let scale = scales[n];
        let back = dot * scale * scale * scale / comptime!(product.depth as f32);
        #[unroll]
        for p in 0..count {
            let weights = gamma_of(gamma, 0usize, p, product);
            let at = comptime!(n * count + p);
            let (of_x, of_d) = (x[at], d[at]);
            let mut result = Quad::new(0u32);
            #[unroll]
            for i in 0..4usize {
                let x = numbers(of_x.extract(i), product.storage);
                let g = numbers(weights.extract(i), product.storage);
                let inner = numbers(of_d.extract(i), product.storage) * slope(x, g, scale);
                let d_x = inner * Pair::new(scale) - x * Pair::new(back);
                result.insert(i, word(d_x, product.storage));
            }
            d[at] = result;
        }
    }
}
