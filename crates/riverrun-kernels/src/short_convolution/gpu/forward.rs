//! The forward kernel: the inputs that a step sees move through a window of registers.

use cubecl::prelude::*;

use super::window::{Config, TILE, clear, cut, push};
use crate::activation::gpu::values;
use crate::gpu::storage::{narrow, widen};
use crate::gpu::strips::{Sizes, lane};

/// `window[k]` is the input `K-1-k` steps before the current one; `y` has the launch's own columns alone.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn convolve<S: Numeric, R: Numeric, W: Size, N: Size>(
    x: &[Vector<S, W>],
    weight: &[Vector<S, W>],
    bias: &[Vector<S, W>],
    state: &[Vector<S, W>],
    reset: &[R],
    y: &mut [Vector<S, W>],
    last: &mut [Vector<S, W>],
    sizes: Sizes,
    #[comptime] config: Config,
    #[define(S)] _storage: ElemType,
    #[define(R)] _dtype: ElemType,
) {
    let lane = lane(&sizes, config.runs);
    let cols = sizes.cols;
    let (taps, before) = comptime!((config.taps, config.taps - 1));
    let zero = Vector::<f32, N>::new(0.0f32);
    let row = lane.sequence * sizes.steps;
    let state_row = lane.sequence * before;
    let mut window = Array::<Vector<f32, N>>::new(comptime!(before.max(1)));
    if lane.first == 0 {
        #[unroll]
        for k in 0..before {
            window[k] = zero;
            if comptime!(config.state) {
                window[k] =
                    widen::<S, W, N>(state[(state_row + k) * cols + lane.col], config.storage);
            }
        }
    } else {
        #[unroll]
        for k in 0..before {
            window[k] = zero;
        }
        #[unroll]
        for k in 0..before {
            let at = row + lane.first + k - before;
            clear::<N>(&mut window, cut::<R>(reset, at, config), config);
            let input = widen::<S, W, N>(x[at * cols + lane.col], config.storage);
            push::<N>(&mut window, input, true, config);
        }
    }
    let mut weights = Array::<Vector<f32, N>>::new(taps);
    #[unroll]
    for k in 0..taps {
        weights[k] = widen::<S, W, N>(weight[k * cols + lane.col], config.storage);
    }
    let mut start = zero;
    if comptime!(config.bias) {
        start = widen::<S, W, N>(bias[lane.col], config.storage);
    }
    for tile in 0..(lane.end - lane.first).div_ceil(TILE) {
        let first = lane.first + tile * TILE;
        let mut rows = Array::<Vector<S, W>>::new(TILE);
        #[unroll]
        for u in 0..TILE {
            rows[u] = x[(row + (first + u).min(sizes.steps - 1)) * cols + lane.col];
        }
        #[unroll]
        for u in 0..TILE {
            let t = first + u;
            if t < lane.end {
                clear::<N>(&mut window, cut::<R>(reset, row + t, config), config);
                let input = widen::<S, W, N>(rows[u], config.storage);
                let mut sum = fma(weights[before], input, start);
                #[unroll]
                for k in 0..before {
                    sum = fma(weights[k], window[k], sum);
                }
                if let Some(f) = comptime!(config.nonlinearity) {
                    sum = values::<N>(sum, f, config.ptx);
                }
                let at = (row + t) * sizes.own + (lane.col - sizes.from);
                y[at] = narrow::<S, W, N>(sum, config.storage);
                push::<N>(&mut window, input, true, config);
            }
        }
    }
    if lane.end == sizes.steps && lane.first < lane.end {
        #[unroll]
        for k in 0..before {
            last[(state_row + k) * cols + lane.col] = narrow::<S, W, N>(window[k], config.storage);
        }
    }
}
