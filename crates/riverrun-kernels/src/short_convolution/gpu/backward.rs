//! The backward kernel: the gradients of the steps after the current one move through a window of registers, and with a
//! nonlinearity the inputs before it, from which the convolution's value is computed again.

use cubecl::prelude::*;

use super::window::{Config, TILE, clear, cut, push};
use crate::activation::Nonlinearity;
use crate::activation::gpu::slopes;
use crate::gpu::storage::{narrow, widen};
use crate::gpu::strips::{Sizes, lane, write_parts};

/// The window of a backward walk: `gradients[k]` is that of the output `k + 1` steps after the current one, 0 where a reset lies
/// between; `visible`: no reset lies between the current step and the end.
#[derive(CubeType)]
struct Later<N: Size> {
    gradients: Array<Vector<f32, N>>,
    visible: bool,
}

/// Takes the gradient of a step's output, before the walk goes to the step before.
#[cube]
fn pass<N: Size>(later: &mut Later<N>, d: Vector<f32, N>, cut: bool, #[comptime] config: Config) {
    push::<N>(&mut later.gradients, d, false, config);
    clear::<N>(&mut later.gradients, cut, config);
    later.visible = later.visible && !cut;
}

/// The gradient of an input from the outputs after it, and what it adds to those of the weights. `to_end`: steps from it to the
/// last one.
#[cube]
fn gradient<S: Numeric, W: Size, N: Size>(
    later: &Later<N>,
    start: Vector<f32, N>,
    x: Vector<f32, N>,
    weights: &Array<Vector<f32, N>>,
    sums: &mut Array<Vector<f32, N>>,
    d_last: &[Vector<S, W>],
    state_row: usize,
    to_end: usize,
    col: usize,
    cols: usize,
    #[comptime] config: Config,
) -> Vector<f32, N> {
    let before = comptime!(config.taps - 1);
    let mut d_x = start;
    #[unroll]
    for k in 0..before {
        let d = later.gradients[k];
        d_x = fma(weights[comptime!(before - 1 - k)], d, d_x);
        sums[comptime!(before - 1 - k)] = fma(x, d, sums[comptime!(before - 1 - k)]);
    }
    if comptime!(config.d_last) {
        if to_end < before && later.visible {
            let at = state_row + (before - 1 - to_end);
            d_x += widen::<S, W, N>(d_last[at * cols + col], config.storage);
        }
    }
    d_x
}

/// The inputs that a step sees, `seen[K-1]` its own, for the convolution's value there.
#[derive(CubeType)]
struct Seen<N: Size> {
    inputs: Array<Vector<f32, N>>,
    start: Vector<f32, N>,
}

/// The input `back` steps before step `t` of the sequence whose steps begin at `row`.
#[cube]
fn input_before<S: Numeric, W: Size, N: Size>(
    x: &[Vector<S, W>],
    state: &[Vector<S, W>],
    row: usize,
    state_row: usize,
    t: usize,
    col: usize,
    cols: usize,
    #[comptime] back: usize,
    #[comptime] config: Config,
) -> Vector<f32, N> {
    let mut input = Vector::<f32, N>::new(0.0f32);
    if t >= back {
        input = widen::<S, W, N>(x[(row + t - back) * cols + col], config.storage);
    } else if comptime!(config.state) {
        let at = state_row + t + comptime!(config.taps - 1 - back);
        input = widen::<S, W, N>(state[at * cols + col], config.storage);
    }
    input
}

/// The gradient of the convolution's value at step `t`, from that of the output.
#[cube]
fn before_nonlinearity<R: Numeric, N: Size>(
    d: Vector<f32, N>,
    seen: &Seen<N>,
    weights: &Array<Vector<f32, N>>,
    reset: &[R],
    row: usize,
    t: usize,
    #[comptime] f: Nonlinearity,
    #[comptime] config: Config,
) -> Vector<f32, N> {
    let before = comptime!(config.taps - 1);
    let mut sum = fma(weights[before], seen.inputs[before], seen.start);
    let mut visible = true.runtime();
    #[unroll]
    for back in 1..comptime!(before + 1) {
        let k = comptime!(before - back);
        let mut input = seen.inputs[k];
        if comptime!(config.reset) {
            // The step after the input: a reset there or later hides it.
            if t + 1 >= back {
                visible = visible && !cut::<R>(reset, row + t + 1 - back, config);
            }
            input = select(visible, input, Vector::<f32, N>::new(0.0f32));
        }
        sum = fma(weights[k], input, sum);
    }
    d * slopes::<N>(sum, f, config.ptx)
}

/// From the last step of a run to the first; `d_y` has the launch's own columns alone.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn convolve_backward<S: Numeric, R: Numeric, W: Size, N: Size>(
    x: &[Vector<S, W>],
    weight: &[Vector<S, W>],
    bias: &[Vector<S, W>],
    state: &[Vector<S, W>],
    reset: &[R],
    d_y: &[Vector<S, W>],
    d_last: &[Vector<S, W>],
    d_x: &mut [Vector<S, W>],
    d_state: &mut [Vector<S, W>],
    parts: &mut [Vector<f32, N>],
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
    let mut weights = Array::<Vector<f32, N>>::new(taps);
    let mut sums = Array::<Vector<f32, N>>::new(comptime!(taps + 1));
    #[unroll]
    for k in 0..taps {
        weights[k] = widen::<S, W, N>(weight[k * cols + lane.col], config.storage);
        sums[k] = zero;
    }
    sums[taps] = zero;
    let mut seen = Seen::<N> {
        inputs: Array::<Vector<f32, N>>::new(taps),
        start: zero,
    };
    if comptime!(config.bias) {
        seen.start = widen::<S, W, N>(bias[lane.col], config.storage);
    }
    let own = lane.col - sizes.from;
    let mut later = Later::<N> {
        gradients: Array::<Vector<f32, N>>::new(comptime!(before.max(1))),
        visible: true.runtime(),
    };
    #[unroll]
    for k in 0..before {
        later.gradients[k] = zero;
    }
    if lane.first < lane.end {
        #[unroll]
        for k in 0..before {
            let t = lane.end + comptime!(before - 1 - k);
            if t < sizes.steps {
                let mut d = widen::<S, W, N>(d_y[(row + t) * sizes.own + own], config.storage);
                if let Some(f) = comptime!(config.nonlinearity) {
                    #[unroll]
                    for back in 0..taps {
                        seen.inputs[comptime!(before - back)] = input_before::<S, W, N>(
                            x, state, row, state_row, t, lane.col, cols, back, config,
                        );
                    }
                    d = before_nonlinearity::<R, N>(d, &seen, &weights, reset, row, t, f, config);
                }
                pass::<N>(&mut later, d, cut::<R>(reset, row + t, config), config);
            }
        }
    }
    // With a nonlinearity, inputs arrive as many steps early as a step sees before it.
    let early = comptime!(if config.nonlinearity.is_some() {
        before
    } else {
        0
    });
    if comptime!(config.nonlinearity.is_some()) {
        // The last step's, one place lower: a walk's step begins by moving them up.
        if lane.first < lane.end {
            #[unroll]
            for back in 0..before {
                seen.inputs[comptime!(before - 1 - back)] = input_before::<S, W, N>(
                    x,
                    state,
                    row,
                    state_row,
                    lane.end - 1,
                    lane.col,
                    cols,
                    back,
                    config,
                );
            }
        }
    }
    for tile in 0..(lane.end - lane.first).div_ceil(TILE) {
        let mut inputs = Array::<Vector<S, W>>::new(TILE);
        let mut rows = Array::<Vector<S, W>>::new(TILE);
        #[unroll]
        for u in 0..TILE {
            // Steps before the run's first are loaded as the sequence's first, and not used.
            let back = tile * TILE + u + 1;
            let t = lane.end - back.min(lane.end);
            let seen_first = lane.end - (back + early).min(lane.end);
            inputs[u] = x[(row + seen_first) * cols + lane.col];
            rows[u] = d_y[(row + t) * sizes.own + own];
        }
        #[unroll]
        for u in 0..TILE {
            let back = tile * TILE + u + 1;
            if lane.first + back <= lane.end {
                let t = lane.end - back;
                let mut input = widen::<S, W, N>(inputs[u], config.storage);
                let mut d = widen::<S, W, N>(rows[u], config.storage);
                if let Some(f) = comptime!(config.nonlinearity) {
                    #[unroll]
                    for k in 0..before {
                        let to = comptime!(before - k);
                        seen.inputs[to] = seen.inputs[comptime!(before - 1 - k)];
                    }
                    if t < before {
                        input = zero;
                        if comptime!(config.state) {
                            let at = (state_row + t) * cols + lane.col;
                            input = widen::<S, W, N>(state[at], config.storage);
                        }
                    }
                    seen.inputs[0] = input;
                    input = seen.inputs[before];
                    d = before_nonlinearity::<R, N>(d, &seen, &weights, reset, row, t, f, config);
                }
                let out = gradient::<S, W, N>(
                    &later,
                    weights[before] * d,
                    input,
                    &weights,
                    &mut sums,
                    d_last,
                    state_row,
                    sizes.steps - 1 - t,
                    lane.col,
                    cols,
                    config,
                );
                sums[before] = fma(input, d, sums[before]);
                sums[taps] += d;
                d_x[(row + t) * cols + lane.col] = narrow::<S, W, N>(out, config.storage);
                pass::<N>(&mut later, d, cut::<R>(reset, row + t, config), config);
            }
        }
    }
    if lane.first == 0 && lane.first < lane.end {
        #[unroll]
        for k in 0..before {
            let at = (state_row + comptime!(before - 1 - k)) * cols + lane.col;
            let mut input = zero;
            if comptime!(config.state) {
                input = widen::<S, W, N>(state[at], config.storage);
            }
            let out = gradient::<S, W, N>(
                &later,
                zero,
                input,
                &weights,
                &mut sums,
                d_last,
                state_row,
                sizes.steps + k,
                lane.col,
                cols,
                config,
            );
            d_state[at] = narrow::<S, W, N>(out, config.storage);
            pass::<N>(&mut later, zero, false.runtime(), config);
        }
    }
    write_parts::<N>(
        &sums,
        parts,
        &lane,
        &sizes,
        comptime!(taps + 1),
        config.runs,
        config.units,
    );
}
