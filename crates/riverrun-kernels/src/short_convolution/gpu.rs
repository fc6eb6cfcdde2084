//! On GPUs: a thread walks a run of steps of a vector of channels, with the inputs (backward: the gradients) that a step sees in
//! registers, so that every element is read once but for the few before a run.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::Shape;
use crate::Error;
use crate::gpu::copy::copy_or_zero;
use crate::gpu::storage::{Storage, narrow, widen};
use crate::gpu::strips::{Sizes, Strips, lane, write_parts};
use crate::gpu::{Dtype, buffer, expect};

/// Buffers of a forward pass, all contiguous.
#[derive(Debug, Clone)]
pub struct Forward {
    /// `[B, T, D]`.
    pub x: Handle,
    /// `[K, D]`, the step's own weight last.
    pub weight: Handle,
    /// `[D]`.
    pub bias: Option<Handle>,
    /// `[B, K-1, D]`, zeros when absent.
    pub state: Option<Handle>,
    /// `[B, T]`, in the storage type; not 0 means reset.
    pub reset: Option<Handle>,
    /// `[B, T, D]`, written.
    pub y: Handle,
    /// `[B, K-1, D]`, written.
    pub last: Handle,
}

/// Buffers of a backward pass, all contiguous.
#[derive(Debug, Clone)]
pub struct Backward {
    /// As in the forward pass.
    pub x: Handle,
    /// As in the forward pass.
    pub weight: Handle,
    /// As in the forward pass.
    pub state: Option<Handle>,
    /// As in the forward pass.
    pub reset: Option<Handle>,
    /// `[B, T, D]`, `∂L/∂y`.
    pub d_y: Handle,
    /// `[B, K-1, D]`, the gradient of the state after the last step.
    pub d_last: Option<Handle>,
    /// `[B, T, D]`, written.
    pub d_x: Handle,
    /// `[K, D]`, written.
    pub d_weight: Handle,
    /// `[D]`, written.
    pub d_bias: Handle,
    /// `[B, K-1, D]`, written.
    pub d_state: Handle,
}

/// Rows that a thread loads at a time.
const TILE: usize = 4;

/// The values that change the generated code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Config {
    taps: usize,
    storage: Storage,
    runs: usize,
    units: usize,
    bias: bool,
    state: bool,
    reset: bool,
    /// Backward only: the state after the last step has a gradient.
    d_last: bool,
}

fn plan(
    client: &Client,
    shape: Shape,
    dtype: Dtype,
    [bias, state, reset, d_last]: [bool; 4],
) -> Result<(Strips, Config), Error> {
    dtype.check(client)?;
    if shape.dim == 0 || shape.taps == 0 {
        return Err(Error::NoChannels);
    }
    let sizes = [shape.batch, shape.steps, shape.dim];
    // The inputs before a run are those of one other run.
    let strips = Strips::new(client, dtype, sizes, shape.before());
    let config = Config {
        taps: shape.taps,
        storage: strips.storage,
        runs: strips.runs,
        units: strips.units(),
        bias,
        state,
        reset,
        d_last,
    };
    Ok((strips, config))
}

/// Computes `y` and the state after the last step.
///
/// # Errors
/// [`Error::NoChannels`], [`Error::Dtype`], [`Error::Length`]; nothing has been launched then.
pub fn forward(client: &Client, shape: Shape, dtype: Dtype, args: &Forward) -> Result<(), Error> {
    let flags = [
        args.bias.is_some(),
        args.state.is_some(),
        args.reset.is_some(),
        false,
    ];
    let (strips, config) = plan(client, shape, dtype, flags)?;
    let (all, state) = (shape.elements(), shape.state());
    let buffers = [
        ("x", Some(&args.x), all),
        ("weight", Some(&args.weight), shape.weights()),
        ("bias", args.bias.as_ref(), shape.dim),
        ("state", args.state.as_ref(), state),
        ("reset", args.reset.as_ref(), shape.rows()),
        ("y", Some(&args.y), all),
        ("the last state", Some(&args.last), state),
    ];
    expect(dtype.size(), buffers)?;
    if all == 0 {
        copy_or_zero(client, dtype, args.state.as_ref(), &args.last, state);
        return Ok(());
    }
    let v = strips.vector;
    // Absent buffers are not read, and a state of no rows is not written.
    let optional = |handle: &Option<Handle>, elements: usize, v: usize| match handle {
        Some(handle) => buffer(handle, elements, v),
        None => buffer(&args.x, all, v),
    };
    // SAFETY: the buffers have been checked, and threads without a row or columns read the last ones and write nothing.
    unsafe {
        convolve::launch_unchecked(
            client,
            strips.count(client),
            strips.dim(),
            strips.address(1, dtype),
            strips.storage.width(v),
            v,
            buffer(&args.x, all, v),
            buffer(&args.weight, shape.weights(), v),
            optional(&args.bias, shape.dim, v),
            optional(&args.state, state, v),
            optional(&args.reset, shape.rows(), 1),
            buffer(&args.y, all, v),
            buffer(&args.last, state, v),
            strips.sizes(),
            config,
            strips.storage.elem(dtype),
            dtype.elem(),
        );
    }
    Ok(())
}

/// Computes the gradients.
///
/// # Errors
/// As [`forward`].
pub fn backward(client: &Client, shape: Shape, dtype: Dtype, args: &Backward) -> Result<(), Error> {
    let flags = [
        true,
        args.state.is_some(),
        args.reset.is_some(),
        args.d_last.is_some(),
    ];
    let (strips, config) = plan(client, shape, dtype, flags)?;
    let (all, state) = (shape.elements(), shape.state());
    let buffers = [
        ("x", Some(&args.x), all),
        ("weight", Some(&args.weight), shape.weights()),
        ("state", args.state.as_ref(), state),
        ("reset", args.reset.as_ref(), shape.rows()),
        ("d_y", Some(&args.d_y), all),
        ("d_last", args.d_last.as_ref(), state),
        ("d_x", Some(&args.d_x), all),
        ("d_weight", Some(&args.d_weight), shape.weights()),
        ("d_bias", Some(&args.d_bias), shape.dim),
        ("d_state", Some(&args.d_state), state),
    ];
    expect(dtype.size(), buffers)?;
    let sums = shape.taps + 1;
    let parts = strips.scratch(client, sums);
    if all == 0 {
        copy_or_zero(client, dtype, args.d_last.as_ref(), &args.d_state, state);
    } else {
        let v = strips.vector;
        let optional = |handle: &Option<Handle>, elements: usize, v: usize| match handle {
            Some(handle) => buffer(handle, elements, v),
            None => buffer(&args.x, all, v),
        };
        // SAFETY: as in `forward`.
        unsafe {
            convolve_backward::launch_unchecked(
                client,
                strips.count(client),
                strips.dim(),
                strips.address(1, dtype),
                strips.storage.width(v),
                v,
                buffer(&args.x, all, v),
                buffer(&args.weight, shape.weights(), v),
                optional(&args.state, state, v),
                optional(&args.reset, shape.rows(), 1),
                buffer(&args.d_y, all, v),
                optional(&args.d_last, state, v),
                buffer(&args.d_x, all, v),
                buffer(&args.d_state, state, v),
                buffer(&parts, strips.elements(sums), v),
                strips.sizes(),
                config,
                strips.storage.elem(dtype),
                dtype.elem(),
            );
        }
    }
    strips.total(client, dtype, &parts, sums, [0, shape.taps], &args.d_weight);
    strips.total(client, dtype, &parts, sums, [shape.taps, 1], &args.d_bias);
    Ok(())
}

/// Whether step `t` of a sequence is a reset.
#[cube]
fn cut<R: Numeric>(reset: &[R], row: usize, #[comptime] config: Config) -> bool {
    if comptime!(config.reset) {
        reset[row] != R::from_int(0)
    } else {
        false.runtime()
    }
}

#[cube]
fn clear<N: Size>(window: &mut Array<Vector<f32, N>>, cut: bool, #[comptime] config: Config) {
    if comptime!(config.reset) {
        let zero = Vector::<f32, N>::new(0.0f32);
        #[unroll]
        for k in 0..comptime!(config.taps - 1) {
            window[k] = select(cut, zero, window[k]);
        }
    }
}

/// `window` is moved by one place, and `x` put in the last (forward) or the first (backward).
#[cube]
fn push<N: Size>(
    window: &mut Array<Vector<f32, N>>,
    x: Vector<f32, N>,
    #[comptime] forward: bool,
    #[comptime] config: Config,
) {
    let before = comptime!(config.taps - 1);
    #[unroll]
    for k in 0..before {
        let (to, from) = comptime!(if forward {
            (k, k + 1)
        } else {
            (before - 1 - k, before.wrapping_sub(2 + k))
        });
        if comptime!(k + 1 == before) {
            window[to] = x;
        } else {
            window[to] = window[from];
        }
    }
}

/// `window[k]` is the input `K-1-k` steps before the current one.
#[cube(launch_unchecked, address_type = "dynamic")]
fn convolve<S: Numeric, R: Numeric, W: Size, N: Size>(
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
                y[(row + t) * cols + lane.col] = narrow::<S, W, N>(sum, config.storage);
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

/// From the last step of a run to the first.
#[cube(launch_unchecked, address_type = "dynamic")]
fn convolve_backward<S: Numeric, R: Numeric, W: Size, N: Size>(
    x: &[Vector<S, W>],
    weight: &[Vector<S, W>],
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
                let d = widen::<S, W, N>(d_y[(row + t) * cols + lane.col], config.storage);
                pass::<N>(&mut later, d, cut::<R>(reset, row + t, config), config);
            }
        }
    }
    for tile in 0..(lane.end - lane.first).div_ceil(TILE) {
        let mut inputs = Array::<Vector<S, W>>::new(TILE);
        let mut rows = Array::<Vector<S, W>>::new(TILE);
        #[unroll]
        for u in 0..TILE {
            // Steps before the run's first are loaded as the sequence's first, and not used.
            let t = lane.end - (tile * TILE + u + 1).min(lane.end);
            let at = (row + t) * cols + lane.col;
            inputs[u] = x[at];
            rows[u] = d_y[at];
        }
        #[unroll]
        for u in 0..TILE {
            let back = tile * TILE + u + 1;
            if lane.first + back <= lane.end {
                let t = lane.end - back;
                let input = widen::<S, W, N>(inputs[u], config.storage);
                let d = widen::<S, W, N>(rows[u], config.storage);
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
