//! Collective operations of the lanes of a plane: sums, waits, parts of a product.

use cubecl::prelude::*;

use super::Config;
use crate::gpu::cluster::{number_of, receive, step_of};
use crate::gpu::full_plane::shuffle_xor;

/// The largest over the lanes of a plane.
#[cube]
pub(super) fn largest(x: f32) -> f32 {
    let mut top = x;
    #[unroll]
    for i in 0..5usize {
        top = top.max(shuffle_xor(top, comptime!(16u32 >> i)));
    }
    top
}

/// The sums over the lanes of a plane of `count` numbers, a power of two: each lane gets the `lane · count / 32`-th.
#[cube]
pub(super) fn scattered_sums(values: &mut Array<f32>, #[comptime] count: usize) -> f32 {
    #[unroll]
    for i in 0..comptime!(count.ilog2() as usize) {
        let mask = comptime!(16u32 >> i);
        let half = comptime!(count >> (i + 1));
        let upper = UNIT_POS_X & mask != 0;
        #[unroll]
        for n in 0..half {
            let (low, high) = (values[n], values[comptime!(n + half)]);
            let kept = select(upper, high, low);
            values[n] = kept + shuffle_xor(select(upper, low, high), mask);
        }
    }
    let mut sum = values[0];
    #[unroll]
    for i in 0..comptime!((32 / count).ilog2() as usize) {
        sum += shuffle_xor(sum, comptime!((16 / count) as u32 >> i));
    }
    sum
}

/// The lane's columns of a row that all planes send, when all of them are there.
#[cube]
pub(super) fn await_row(at: u64, x: &mut Array<f32>, step: u32, #[comptime] config: Config) {
    let columns = comptime!(config.columns());
    let hidden = comptime!(config.hidden);
    let mut waiting = true;
    while waiting {
        waiting = false;
        #[unroll]
        for k in 0..columns {
            let word = receive(at + comptime!(k as u64 * 256));
            x[k] = number_of(word);
            let mut there = step_of(word) == step;
            // Nobody sends what is past the end.
            if comptime!(k * 32 + 32 > hidden) {
                there = there || UNIT_POS_X >= comptime!((hidden - k * 32) as u32);
            }
            waiting = waiting || !there;
        }
    }
    sync_plane();
}

/// The lane's part of the product of a row of the weights with the state.
#[cube]
pub(super) fn row_sum(
    weights: &Array<f32>,
    u: &[f32],
    x: &Array<f32>,
    m: usize,
    start: usize,
    #[comptime] g: usize,
    #[comptime] gate: usize,
    #[comptime] q: usize,
    #[comptime] config: Config,
) -> f32 {
    let hidden = comptime!(config.hidden);
    let mut sum = 0.0f32;
    if comptime!(config.resident) {
        #[unroll]
        for k in 0..comptime!(config.columns()) {
            sum = fma(weights[comptime!(config.weight(g, gate, q, k))], x[k], sum);
        }
    } else {
        let row = (m * 3 + gate) * hidden + (start + q).min(hidden - 1);
        #[unroll]
        for k in 0..comptime!(config.columns()) {
            let j = UNIT_POS_X as usize + comptime!(k * 32);
            let weight = u[row * hidden + j.min(hidden - 1)];
            sum = fma(select(j < hidden, weight, 0.0f32), x[k], sum);
        }
    }
    sum
}
