//! On GPUs: a thread walks a run of rows of a vector of hidden units; every element is read once and written once.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::{NO_MEMORY, Problem};
use crate::Error;
use crate::gpu::math::sigmoid;
use crate::gpu::storage::{Storage, narrow, widen};
use crate::gpu::strips::{Sizes, Strips, lane, write_parts};
use crate::gpu::{Dtype, buffer, expect, ptx};

/// Inputs of both passes, contiguous: see the [formulas](super).
#[derive(Debug, Clone)]
pub struct Inputs {
    /// `[B, T, D]`.
    pub p: Handle,
    /// `[B, T, D]`.
    pub q: Handle,
    /// `[B, T, D]`.
    pub x: Handle,
    /// `[2 D]`, zeros when absent.
    pub bias: Option<Handle>,
    /// `[D]`.
    pub rate: Handle,
    /// `[B, T]`, in the storage type; not 0 means reset.
    pub reset: Option<Handle>,
}

impl Inputs {
    /// The arguments of a kernel, in vectors of `v`; absent ones are not read.
    fn arguments(&self, problem: &Problem, v: usize) -> [BufferArg; 6] {
        let (dim, all) = (problem.dim, problem.elements());
        let bias = self.bias.as_ref().map(|bias| buffer(bias, 2 * dim, v));
        let reset = self.reset.as_ref();
        let reset = reset.map(|reset| buffer(reset, problem.rows(), 1));
        [
            buffer(&self.p, all, v),
            buffer(&self.q, all, v),
            buffer(&self.x, all, v),
            bias.unwrap_or_else(|| buffer(&self.x, all, v)),
            buffer(&self.rate, dim, v),
            reset.unwrap_or_else(|| buffer(&self.x, all, 1)),
        ]
    }
}

/// The gradients of the inputs, contiguous, written.
#[derive(Debug, Clone)]
pub struct Gradients {
    /// `[B, T, D]`.
    pub p: Handle,
    /// `[B, T, D]`.
    pub q: Handle,
    /// `[B, T, D]`.
    pub x: Handle,
    /// `[2 D]`.
    pub bias: Handle,
    /// `[D]`.
    pub rate: Handle,
}

/// Rows that a thread loads at a time.
const TILE: usize = 4;

/// Sums of a backward pass: of the two biases and of the rate.
const SUMS: usize = 3;

/// The values that change the generated code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Config {
    storage: Storage,
    runs: usize,
    units: usize,
    bias: bool,
    forget: bool,
    first: bool,
    ptx: bool,
}

fn plan(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    inputs: &Inputs,
) -> Result<(Strips, Config), Error> {
    dtype.check(client)?;
    let (dim, all) = (problem.dim, problem.elements());
    if dim == 0 {
        return Err(Error::NoChannels);
    }
    let buffers = [
        ("p", Some(&inputs.p), all),
        ("q", Some(&inputs.q), all),
        ("x", Some(&inputs.x), all),
        ("bias", inputs.bias.as_ref(), 2 * dim),
        ("rate", Some(&inputs.rate), dim),
        ("reset", inputs.reset.as_ref(), problem.rows()),
    ];
    expect(dtype.size(), buffers)?;
    let strips = Strips::new(
        client,
        dtype,
        [problem.batch, problem.steps],
        &[dim],
        1,
        SUMS,
    );
    let config = Config {
        storage: strips.storage,
        runs: strips.runs,
        units: strips.units(),
        bias: inputs.bias.is_some(),
        forget: problem.forget && inputs.reset.is_some(),
        first: problem.first,
        ptx: ptx(client),
    };
    Ok((strips, config))
}

/// Computes `[B, T, 2 D]`.
///
/// # Errors
/// [`Error::NoChannels`], [`Error::Dtype`], [`Error::Length`]; nothing has been launched then.
pub fn forward(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    inputs: &Inputs,
    out: &Handle,
) -> Result<(), Error> {
    let (strips, config) = plan(client, problem, dtype, inputs)?;
    let all = problem.elements();
    expect(dtype.size(), [("out", Some(out), all.saturating_mul(2))])?;
    if all == 0 {
        return Ok(());
    }
    let v = strips.vector;
    let [p, q, x, bias, rate, reset] = inputs.arguments(problem, v);
    // SAFETY: the buffers have been checked, and threads without a row or columns read the last ones and write nothing.
    unsafe {
        gates::launch_unchecked(
            client,
            strips.count(client, strips.whole()),
            strips.dim(),
            strips.address(2, dtype),
            strips.storage.width(v),
            v,
            p,
            q,
            x,
            bias,
            rate,
            reset,
            buffer(out, 2 * all, v),
            strips.sizes(strips.whole()),
            config,
            strips.storage.elem(dtype),
            dtype.elem(),
        );
    }
    Ok(())
}

/// Computes the gradients from that of the result.
///
/// # Errors
/// As [`forward`].
pub fn backward(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    inputs: &Inputs,
    d_out: &Handle,
    d: &Gradients,
) -> Result<(), Error> {
    let (strips, config) = plan(client, problem, dtype, inputs)?;
    let (dim, all) = (problem.dim, problem.elements());
    let buffers = [
        ("d_out", Some(d_out), all.saturating_mul(2)),
        ("d_p", Some(&d.p), all),
        ("d_q", Some(&d.q), all),
        ("d_x", Some(&d.x), all),
        ("d_bias", Some(&d.bias), 2 * dim),
        ("d_rate", Some(&d.rate), dim),
    ];
    expect(dtype.size(), buffers)?;
    let parts = strips.scratch(client, SUMS);
    if all > 0 {
        let v = strips.vector;
        let [p, q, x, bias, rate, reset] = inputs.arguments(problem, v);
        // SAFETY: as in `forward`.
        unsafe {
            gates_backward::launch_unchecked(
                client,
                strips.count(client, strips.whole()),
                strips.dim(),
                strips.address(2, dtype),
                strips.storage.width(v),
                v,
                p,
                q,
                x,
                bias,
                rate,
                reset,
                buffer(d_out, 2 * all, v),
                buffer(&d.p, all, v),
                buffer(&d.q, all, v),
                buffer(&d.x, all, v),
                buffer(&parts, strips.elements(SUMS), v),
                strips.sizes(strips.whole()),
                config,
                strips.storage.elem(dtype),
                dtype.elem(),
            );
        }
    }
    strips.total(client, dtype, &parts, SUMS, [0, 2], &d.bias);
    strips.total(client, dtype, &parts, SUMS, [2, 1], &d.rate);
    Ok(())
}

/// Biases and rates of a thread's hidden units.
#[derive(CubeType, Clone, Copy)]
struct Units<N: Size> {
    bias_r: Vector<f32, N>,
    bias_i: Vector<f32, N>,
    rate: Vector<f32, N>,
}

#[cube]
fn units<S: Numeric, W: Size, N: Size>(
    bias: &[Vector<S, W>],
    rate: &[Vector<S, W>],
    col: usize,
    cols: usize,
    #[comptime] config: Config,
) -> Units<N> {
    let zero = Vector::<f32, N>::new(0.0f32);
    let rate = widen::<S, W, N>(rate[col], config.storage);
    if comptime!(config.bias) {
        Units::<N> {
            bias_r: widen::<S, W, N>(bias[col], config.storage),
            bias_i: widen::<S, W, N>(bias[cols + col], config.storage),
            rate,
        }
    } else {
        Units::<N> {
            bias_r: zero,
            bias_i: zero,
            rate,
        }
    }
}

/// Whether step `t`, in row `row`, restarts.
#[cube]
fn restarts<R: Numeric>(reset: &[R], row: usize, t: usize, #[comptime] config: Config) -> bool {
    let mut restarts = false.runtime();
    if comptime!(config.first) {
        restarts = t == 0;
    }
    if comptime!(config.forget) {
        restarts = restarts || reset[row] != R::from_int(0);
    }
    restarts
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn gates<S: Numeric, R: Numeric, W: Size, N: Size>(
    p: &[Vector<S, W>],
    q: &[Vector<S, W>],
    x: &[Vector<S, W>],
    bias: &[Vector<S, W>],
    rate: &[Vector<S, W>],
    reset: &[R],
    out: &mut [Vector<S, W>],
    sizes: Sizes,
    #[comptime] config: Config,
    #[define(S)] _storage: ElemType,
    #[define(R)] _dtype: ElemType,
) {
    let lane = lane(&sizes, config.runs);
    let cols = sizes.cols;
    let own = units::<S, W, N>(bias, rate, lane.col, cols, config);
    let no_memory = Vector::<f32, N>::new(comptime!(NO_MEMORY as f32));
    let first_row = lane.sequence * sizes.steps;
    for tile in 0..(lane.end - lane.first).div_ceil(TILE) {
        let first = lane.first + tile * TILE;
        let mut held_p = Array::<Vector<S, W>>::new(TILE);
        let mut held_q = Array::<Vector<S, W>>::new(TILE);
        let mut held_x = Array::<Vector<S, W>>::new(TILE);
        #[unroll]
        for u in 0..TILE {
            let at = (first_row + (first + u).min(sizes.steps - 1)) * cols + lane.col;
            held_p[u] = p[at];
            held_q[u] = q[at];
            held_x[u] = x[at];
        }
        #[unroll]
        for u in 0..TILE {
            let t = first + u;
            if t < lane.end {
                let row = first_row + t;
                let r = widen::<S, W, N>(held_p[u], config.storage) + own.bias_r;
                let i = widen::<S, W, N>(held_q[u], config.storage) + own.bias_i;
                let x = widen::<S, W, N>(held_x[u], config.storage);
                let decay = own.rate * sigmoid::<N>(r, config.ptx);
                let decay = select(restarts::<R>(reset, row, t, config), no_memory, decay);
                let input = x * sigmoid::<N>(i, config.ptx);
                let at = row * 2 * cols + lane.col;
                out[at] = narrow::<S, W, N>(decay, config.storage);
                out[at + cols] = narrow::<S, W, N>(input, config.storage);
            }
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn gates_backward<S: Numeric, R: Numeric, W: Size, N: Size>(
    p: &[Vector<S, W>],
    q: &[Vector<S, W>],
    x: &[Vector<S, W>],
    bias: &[Vector<S, W>],
    rate: &[Vector<S, W>],
    reset: &[R],
    d_out: &[Vector<S, W>],
    d_p: &mut [Vector<S, W>],
    d_q: &mut [Vector<S, W>],
    d_x: &mut [Vector<S, W>],
    parts: &mut [Vector<f32, N>],
    sizes: Sizes,
    #[comptime] config: Config,
    #[define(S)] _storage: ElemType,
    #[define(R)] _dtype: ElemType,
) {
    let lane = lane(&sizes, config.runs);
    let cols = sizes.cols;
    let own = units::<S, W, N>(bias, rate, lane.col, cols, config);
    let (zero, one) = (Vector::<f32, N>::new(0.0f32), Vector::<f32, N>::new(1.0f32));
    let mut sums = Array::<Vector<f32, N>>::new(SUMS);
    #[unroll]
    for k in 0..SUMS {
        sums[k] = zero;
    }
    let first_row = lane.sequence * sizes.steps;
    // Two rows at a time hold as many registers as four of the forward pass.
    for tile in 0..(lane.end - lane.first).div_ceil(comptime!(TILE / 2)) {
        let first = lane.first + tile * comptime!(TILE / 2);
        let mut held = Array::<Vector<S, W>>::new(comptime!(5 * (TILE / 2)));
        #[unroll]
        for u in 0..comptime!(TILE / 2) {
            let row = first_row + (first + u).min(sizes.steps - 1);
            let at = row * cols + lane.col;
            held[comptime!(u * 5)] = p[at];
            held[comptime!(u * 5 + 1)] = q[at];
            held[comptime!(u * 5 + 2)] = x[at];
            held[comptime!(u * 5 + 3)] = d_out[row * 2 * cols + lane.col];
            held[comptime!(u * 5 + 4)] = d_out[row * 2 * cols + cols + lane.col];
        }
        #[unroll]
        for u in 0..comptime!(TILE / 2) {
            let t = first + u;
            if t < lane.end {
                let row = first_row + t;
                let at = row * cols + lane.col;
                let r = widen::<S, W, N>(held[comptime!(u * 5)], config.storage) + own.bias_r;
                let i = widen::<S, W, N>(held[comptime!(u * 5 + 1)], config.storage) + own.bias_i;
                let x = widen::<S, W, N>(held[comptime!(u * 5 + 2)], config.storage);
                let d_decay = widen::<S, W, N>(held[comptime!(u * 5 + 3)], config.storage);
                let d_input = widen::<S, W, N>(held[comptime!(u * 5 + 4)], config.storage);
                let d_decay = select(restarts::<R>(reset, row, t, config), zero, d_decay);
                let r = sigmoid::<N>(r, config.ptx);
                let i = sigmoid::<N>(i, config.ptx);
                let slope = d_decay * r;
                let d_r = slope * own.rate * (one - r);
                let scaled = d_input * i;
                let d_i = scaled * x * (one - i);
                d_p[at] = narrow::<S, W, N>(d_r, config.storage);
                d_q[at] = narrow::<S, W, N>(d_i, config.storage);
                d_x[at] = narrow::<S, W, N>(scaled, config.storage);
                sums[0] += d_r;
                sums[1] += d_i;
                sums[2] += slope;
            }
        }
    }
    write_parts::<N>(&sums, parts, &lane, &sizes, SUMS, config.runs, config.units);
}
