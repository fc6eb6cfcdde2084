//! On GPUs: a thread for a run of rows of a vector of channels.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::Shape;
use crate::Error;
use crate::gpu::math::{exp_of_negative_number, reciprocal_number};
use crate::gpu::storage::{Storage, narrow, widen};
use crate::gpu::strips::{Sizes, Strips, lane, write_parts};
use crate::gpu::{Dtype, buffer, expect, ptx};

/// Rows that a thread loads at a time.
const TILE: usize = 4;

/// Sums of a backward pass: for `dt_bias` and for `A_log`.
const SUMS: usize = 2;

/// Buffers that both passes read, contiguous.
#[derive(Debug, Clone)]
pub struct Inputs {
    /// `[R, H E]`, in the storage type.
    pub a: Handle,
    /// `[H]`, in `f32`.
    pub a_log: Handle,
    /// `[H E]`, in `f32`.
    pub dt_bias: Handle,
}

/// The gradients of the inputs, written.
#[derive(Debug, Clone)]
pub struct Gradients {
    /// `[R, H E]`, in the storage type.
    pub a: Handle,
    /// `[H E]`, in `f32`: that of a head's `A_log` is the sum over its channels.
    pub a_log: Handle,
    /// `[H E]`, in `f32`.
    pub dt_bias: Handle,
}

/// The values that change the generated code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Config {
    storage: Storage,
    runs: usize,
    units: usize,
    /// Whether `Δ` is written; backward, whether it has a gradient.
    step: bool,
    /// Backward: whether `g` has a gradient.
    g: bool,
    ptx: bool,
}

fn plan(
    client: &Client,
    shape: Shape,
    dtype: Dtype,
    inputs: &Inputs,
    [step, g]: [bool; 2],
) -> Result<(Strips, Config), Error> {
    dtype.check(client)?;
    let dim = shape.dim();
    if dim == 0 {
        return Err(Error::NoChannels);
    }
    expect(dtype.size(), [("a", Some(&inputs.a), shape.elements())])?;
    let parameters = [
        ("A_log", Some(&inputs.a_log), shape.heads),
        ("dt_bias", Some(&inputs.dt_bias), dim),
    ];
    expect(4, parameters)?;
    let strips = Strips::new(client, dtype, [1, shape.rows], &[dim], 1, SUMS);
    let config = Config {
        storage: strips.storage,
        runs: strips.runs,
        units: strips.units(),
        step,
        g,
        ptx: ptx(client),
    };
    Ok((strips, config))
}

/// Computes `g` in the storage type, and `Δ` in `f32` if wanted.
///
/// # Errors
/// [`Error::NoChannels`], [`Error::Dtype`], [`Error::Length`]; nothing has been launched then.
pub fn forward(
    client: &Client,
    shape: Shape,
    dtype: Dtype,
    inputs: &Inputs,
    step: Option<&Handle>,
    g: &Handle,
) -> Result<(), Error> {
    let (strips, config) = plan(client, shape, dtype, inputs, [step.is_some(), true])?;
    let all = shape.elements();
    expect(dtype.size(), [("g", Some(g), all)])?;
    expect(4, [("the steps", step, all)])?;
    if all == 0 {
        return Ok(());
    }
    let (v, whole) = (strips.vector, strips.whole());
    // Two writable arguments of a launch must not share their memory.
    let nothing = step.is_none().then(|| client.empty(4 * v));
    let step = match (step, &nothing) {
        (None, Some(nothing)) => buffer(nothing, v, v),
        (step, _) => buffer(step.unwrap_or(g), all, v),
    };
    // SAFETY: the buffers have been checked; threads without a row or columns read the last ones and write nothing, and without
    // steps nothing is written there.
    unsafe {
        decay::launch_unchecked(
            client,
            strips.count(client, whole),
            strips.dim(),
            strips.address(2, dtype),
            strips.storage.width(v),
            v,
            buffer(&inputs.a, all, v),
            buffer(&inputs.a_log, shape.heads, 1),
            buffer(&inputs.dt_bias, shape.dim(), v),
            step,
            buffer(g, all, v),
            shape.each,
            strips.sizes(whole),
            config,
            strips.storage.elem(dtype),
        );
    }
    Ok(())
}

/// Computes the gradients from those of `Δ`, in `f32`, and `g`, in the storage type.
///
/// # Errors
/// As [`forward`].
pub fn backward(
    client: &Client,
    shape: Shape,
    dtype: Dtype,
    inputs: &Inputs,
    d_step: Option<&Handle>,
    d_g: Option<&Handle>,
    d: &Gradients,
) -> Result<(), Error> {
    let present = [d_step.is_some(), d_g.is_some()];
    let (strips, config) = plan(client, shape, dtype, inputs, present)?;
    let (all, dim) = (shape.elements(), shape.dim());
    expect(dtype.size(), [("d_g", d_g, all), ("d_a", Some(&d.a), all)])?;
    let wide = [
        ("d_step", d_step, all),
        ("d_A_log", Some(&d.a_log), dim),
        ("d_dt_bias", Some(&d.dt_bias), dim),
    ];
    expect(4, wide)?;
    let parts = strips.scratch(client, SUMS);
    if all > 0 {
        let (v, whole) = (strips.vector, strips.whole());
        // SAFETY: as in `forward`; absent gradients are not read.
        unsafe {
            decay_backward::launch_unchecked(
                client,
                strips.count(client, whole),
                strips.dim(),
                strips.address(2, dtype),
                strips.storage.width(v),
                v,
                buffer(&inputs.a, all, v),
                buffer(&inputs.a_log, shape.heads, 1),
                buffer(&inputs.dt_bias, dim, v),
                match d_step {
                    Some(d_step) => buffer(d_step, all, v),
                    None => buffer(&inputs.dt_bias, dim, v),
                },
                buffer(d_g.unwrap_or(&inputs.a), all, v),
                buffer(&d.a, all, v),
                buffer(&parts, strips.elements(SUMS), v),
                shape.each,
                strips.sizes(whole),
                config,
                strips.storage.elem(dtype),
            );
        }
    }
    let f32 = Dtype::F32;
    strips.total(client, f32, &parts, SUMS, [0, 1], &d.dt_bias);
    strips.total(client, f32, &parts, SUMS, [1, 1], &d.a_log);
    Ok(())
}

/// A step size, and its slope.
#[derive(CubeType, Clone, Copy)]
struct Step {
    size: f32,
    slope: f32,
}

/// `softplus(x)` and `σ(x)`.
#[cube]
fn softplus(x: f32, #[comptime] ptx: bool) -> Step {
    let e = exp_of_negative_number(x.abs(), ptx);
    let s = reciprocal_number(1.0f32 + e, ptx);
    // ln(1 + e) = 2 artanh w, for a w of at most 1/3: the first term that is left out is below 2^-29 of the sum.
    let w = e * reciprocal_number(2.0f32 + e, ptx);
    let square = w * w;
    let mut sum = 0.0f32;
    #[unroll]
    for k in 0..8usize {
        sum = fma(sum, square, comptime!(1.0f32 / (15 - 2 * k) as f32));
    }
    Step {
        size: fma(2.0f32 * w, sum, select(x > 0.0f32, x, 0.0f32)),
        slope: select(x < 0.0f32, e * s, s),
    }
}

/// `-e^(A_log)` of a vector of channels.
#[cube]
fn rates<N: Size>(a_log: &[f32], col: usize, each: usize) -> Vector<f32, N> {
    let mut rates = Vector::<f32, N>::new(0.0f32);
    #[unroll]
    for i in 0..N::value() {
        let head = (col * N::value() + i) / each;
        rates.insert(i, 0.0f32 - a_log[head].exp());
    }
    rates
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn decay<S: Numeric, W: Size, N: Size>(
    a: &[Vector<S, W>],
    a_log: &[f32],
    dt_bias: &[Vector<f32, N>],
    step: &mut [Vector<f32, N>],
    g: &mut [Vector<S, W>],
    each: usize,
    sizes: Sizes,
    #[comptime] config: Config,
    #[define(S)] _dtype: ElemType,
) {
    let lane = lane(&sizes, config.runs);
    let rates = rates::<N>(a_log, lane.col, each);
    let bias = dt_bias[lane.col];
    for tile in 0..(lane.end - lane.first).div_ceil(TILE) {
        let first = lane.first + tile * TILE;
        let mut rows = Array::<Vector<S, W>>::new(TILE);
        #[unroll]
        for u in 0..TILE {
            rows[u] = a[(first + u).min(lane.end - 1) * sizes.cols + lane.col];
        }
        #[unroll]
        for u in 0..TILE {
            if first + u < lane.end {
                let at = (first + u) * sizes.cols + lane.col;
                let z = widen::<S, W, N>(rows[u], config.storage) + bias;
                let mut size = Vector::<f32, N>::new(0.0f32);
                #[unroll]
                for i in 0..N::value() {
                    size.insert(i, softplus(z.extract(i), config.ptx).size);
                }
                if comptime!(config.step) {
                    step[at] = size;
                }
                g[at] = narrow::<S, W, N>(rates * size, config.storage);
            }
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn decay_backward<S: Numeric, W: Size, N: Size>(
    a: &[Vector<S, W>],
    a_log: &[f32],
    dt_bias: &[Vector<f32, N>],
    d_step: &[Vector<f32, N>],
    d_g: &[Vector<S, W>],
    d_a: &mut [Vector<S, W>],
    parts: &mut [Vector<f32, N>],
    each: usize,
    sizes: Sizes,
    #[comptime] config: Config,
    #[define(S)] _dtype: ElemType,
) {
    let lane = lane(&sizes, config.runs);
    let rates = rates::<N>(a_log, lane.col, each);
    let bias = dt_bias[lane.col];
    let zero = Vector::<f32, N>::new(0.0f32);
    let mut sums = Array::<Vector<f32, N>>::new(SUMS);
    sums[0] = zero;
    sums[1] = zero;
    for tile in 0..(lane.end - lane.first).div_ceil(TILE) {
        let first = lane.first + tile * TILE;
        let mut rows = Array::<Vector<S, W>>::new(TILE);
        let mut gradients = Array::<Vector<S, W>>::new(TILE);
        #[unroll]
        for u in 0..TILE {
            let at = (first + u).min(lane.end - 1) * sizes.cols + lane.col;
            rows[u] = a[at];
            if comptime!(config.g) {
                gradients[u] = d_g[at];
            }
        }
        #[unroll]
        for u in 0..TILE {
            if first + u < lane.end {
                let at = (first + u) * sizes.cols + lane.col;
                let z = widen::<S, W, N>(rows[u], config.storage) + bias;
                let mut size = zero;
                let mut slope = zero;
                #[unroll]
                for i in 0..N::value() {
                    let step = softplus(z.extract(i), config.ptx);
                    size.insert(i, step.size);
                    slope.insert(i, step.slope);
                }
                let mut d = zero;
                if comptime!(config.g) {
                    d = widen::<S, W, N>(gradients[u], config.storage) * rates;
                    sums[1] = fma(d, size, sums[1]);
                }
                if comptime!(config.step) {
                    d += d_step[at];
                }
                let d_z = d * slope;
                sums[0] += d_z;
                d_a[at] = narrow::<S, W, N>(d_z, config.storage);
            }
        }
    }
    write_parts::<N>(&sums, parts, &lane, &sizes, SUMS, config.runs, config.units);
}
