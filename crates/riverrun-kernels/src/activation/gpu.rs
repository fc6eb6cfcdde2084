//! On GPUs: a thread for a few vectors of elements, each read and written once.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::{CUBE, Nonlinearity, TWICE};
use crate::Error;
use crate::gpu::math::{exp_of_negative_number, reciprocal_number};
use crate::gpu::storage::{Storage, narrow, widen};
use crate::gpu::{Dtype, address, buffer, expect, grid, ptx, vector_width};

/// Threads of a cube.
const THREADS: usize = 256;

/// Vectors of a thread, whose loads are in flight together.
const EACH: usize = 4;

/// The values that change the generated code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Config {
    nonlinearity: Nonlinearity,
    gated: bool,
    storage: Storage,
    ptx: bool,
}

/// Buffers of `count` elements, all contiguous.
#[derive(Debug, Clone)]
pub struct Forward {
    /// Numbers of a buffer.
    pub count: usize,
    /// The function's argument.
    pub gate: Handle,
    /// What the function is a factor of.
    pub x: Option<Handle>,
    /// Written.
    pub y: Handle,
}

/// Buffers of `count` elements, all contiguous.
#[derive(Debug, Clone)]
pub struct Backward {
    /// Numbers of a buffer.
    pub count: usize,
    /// As in the forward pass.
    pub gate: Handle,
    /// As in the forward pass, and its gradient, which is written.
    pub x: Option<[Handle; 2]>,
    /// `∂L/∂y`.
    pub d_y: Handle,
    /// Written.
    pub d_gate: Handle,
}

/// The shape of a launch.
struct Plan {
    vector: usize,
    vectors: usize,
    cubes: CubeCount,
    config: Config,
}

fn plan(
    client: &Client,
    dtype: Dtype,
    nonlinearity: Nonlinearity,
    count: usize,
    gated: bool,
) -> Plan {
    let vector = vector_width(client, dtype, 16, count);
    let vectors = count / vector;
    Plan {
        vector,
        vectors,
        cubes: grid(client, vectors.div_ceil(THREADS * EACH)),
        config: Config {
            nonlinearity,
            gated,
            storage: Storage::choose(client, dtype, vector),
            ptx: ptx(client),
        },
    }
}

/// Computes `y = f(gate)`, or `f(gate) x`.
///
/// # Errors
/// [`Error::Dtype`], [`Error::Length`]; nothing has been launched then.
pub fn forward(
    client: &Client,
    nonlinearity: Nonlinearity,
    dtype: Dtype,
    args: &Forward,
) -> Result<(), Error> {
    dtype.check(client)?;
    let count = args.count;
    let buffers = [
        ("gate", Some(&args.gate), count),
        ("x", args.x.as_ref(), count),
        ("y", Some(&args.y), count),
    ];
    expect(dtype.size(), buffers)?;
    if count == 0 {
        return Ok(());
    }
    let plan = plan(client, dtype, nonlinearity, count, args.x.is_some());
    let (v, storage) = (plan.vector, plan.config.storage);
    // SAFETY: the buffers have been checked, and the kernel checks its positions; an absent factor is not read.
    unsafe {
        activate::launch_unchecked(
            client,
            plan.cubes,
            CubeDim::new_1d(THREADS as u32),
            address(count, dtype),
            storage.width(v),
            v,
            buffer(&args.gate, count, v),
            buffer(args.x.as_ref().unwrap_or(&args.gate), count, v),
            buffer(&args.y, count, v),
            plan.vectors,
            plan.config,
            storage.elem(dtype),
        );
    }
    Ok(())
}

/// Computes `∂L/∂gate`, and `∂L/∂x` of a factor.
///
/// # Errors
/// As [`forward`].
pub fn backward(
    client: &Client,
    nonlinearity: Nonlinearity,
    dtype: Dtype,
    args: &Backward,
) -> Result<(), Error> {
    dtype.check(client)?;
    let count = args.count;
    let [x, d_x] = match &args.x {
        Some([x, d_x]) => [Some(x), Some(d_x)],
        None => [None; 2],
    };
    let buffers = [
        ("gate", Some(&args.gate), count),
        ("x", x, count),
        ("d_y", Some(&args.d_y), count),
        ("d_gate", Some(&args.d_gate), count),
        ("d_x", d_x, count),
    ];
    expect(dtype.size(), buffers)?;
    if count == 0 {
        return Ok(());
    }
    let plan = plan(client, dtype, nonlinearity, count, x.is_some());
    let (v, storage) = (plan.vector, plan.config.storage);
    // Two writable arguments of a launch must not share their memory.
    let nothing = d_x.is_none().then(|| client.empty(v * dtype.size()));
    let d_x = match (d_x, &nothing) {
        (None, Some(nothing)) => buffer(nothing, v, v),
        (d_x, _) => buffer(d_x.unwrap_or(&args.d_gate), count, v),
    };
    // SAFETY: as in `forward`; without a factor `d_x` is not written.
    unsafe {
        activate_backward::launch_unchecked(
            client,
            plan.cubes,
            CubeDim::new_1d(THREADS as u32),
            address(count, dtype),
            storage.width(v),
            v,
            buffer(&args.gate, count, v),
            buffer(x.unwrap_or(&args.gate), count, v),
            buffer(&args.d_y, count, v),
            buffer(&args.d_gate, count, v),
            d_x,
            plan.vectors,
            plan.config,
            storage.elem(dtype),
        );
    }
    Ok(())
}

/// `f` and its slope at a number.
#[derive(CubeType, Clone, Copy)]
struct Point {
    value: f32,
    slope: f32,
}

/// `σ(u)` and `σ(-u)`. A larger `e^-u` than 1e30 would make the second NaN, and the first is 0 in effect.
#[cube]
fn sigmoids(u: f32, #[comptime] ptx: bool) -> (f32, f32) {
    let e = exp_of_negative_number(u, ptx).min(1e30f32);
    let s = reciprocal_number(1.0f32 + e, ptx);
    (s, e * s)
}

#[cube]
fn at_number(x: f32, #[comptime] nonlinearity: Nonlinearity, #[comptime] ptx: bool) -> Point {
    match comptime!(nonlinearity) {
        Nonlinearity::Gelu => {
            let twice = comptime!(TWICE as f32);
            let inner = x * fma(x * x, comptime!((TWICE * CUBE) as f32), twice);
            let (s, rest) = sigmoids(inner, ptx);
            // Beyond, σ(2u) is 0 or 1; squares further out could be infinite, and 0 times infinity is NaN.
            let near = x.clamp(-16.0f32, 16.0f32);
            let d_inner = fma(near * near, comptime!((3.0 * TWICE * CUBE) as f32), twice);
            Point {
                value: x * s,
                slope: fma(s, near * rest * d_inner, s),
            }
        }
        Nonlinearity::Silu => {
            let (s, rest) = sigmoids(x, ptx);
            // σ(-x) is 0 long before; infinity times 0 would be NaN.
            let near = x.min(1e4f32);
            Point {
                value: x * s,
                slope: fma(s, near * rest, s),
            }
        }
        Nonlinearity::Sigmoid => {
            let (s, rest) = sigmoids(x, ptx);
            Point {
                value: s,
                slope: s * rest,
            }
        }
    }
}

/// `f` of each number.
#[cube]
pub(crate) fn values<N: Size>(
    x: Vector<f32, N>,
    #[comptime] nonlinearity: Nonlinearity,
    #[comptime] ptx: bool,
) -> Vector<f32, N> {
    let mut y = Vector::<f32, N>::new(0.0f32);
    #[unroll]
    for i in 0..N::value() {
        y.insert(i, at_number(x.extract(i), nonlinearity, ptx).value);
    }
    y
}

/// The slope of `f` at each number.
#[cube]
pub(crate) fn slopes<N: Size>(
    x: Vector<f32, N>,
    #[comptime] nonlinearity: Nonlinearity,
    #[comptime] ptx: bool,
) -> Vector<f32, N> {
    let mut y = Vector::<f32, N>::new(0.0f32);
    #[unroll]
    for i in 0..N::value() {
        y.insert(i, at_number(x.extract(i), nonlinearity, ptx).slope);
    }
    y
}

/// `all` counts vectors.
#[cube(launch_unchecked, address_type = "dynamic")]
fn activate<S: Numeric, W: Size, N: Size>(
    gate: &[Vector<S, W>],
    x: &[Vector<S, W>],
    y: &mut [Vector<S, W>],
    all: usize,
    #[comptime] config: Config,
    #[define(S)] _dtype: ElemType,
) {
    let first = CUBE_POS * comptime!(THREADS * EACH) + UNIT_POS as usize;
    let mut gates = Array::<Vector<S, W>>::new(EACH);
    let mut factors = Array::<Vector<S, W>>::new(EACH);
    #[unroll]
    for k in 0..EACH {
        let at = (first + k * THREADS).min(all - 1);
        gates[k] = gate[at];
        if comptime!(config.gated) {
            factors[k] = x[at];
        }
    }
    #[unroll]
    for k in 0..EACH {
        let at = first + k * THREADS;
        if at < all {
            let gate = widen::<S, W, N>(gates[k], config.storage);
            let mut out = values::<N>(gate, config.nonlinearity, config.ptx);
            if comptime!(config.gated) {
                out *= widen::<S, W, N>(factors[k], config.storage);
            }
            y[at] = narrow::<S, W, N>(out, config.storage);
        }
    }
}

/// `all` counts vectors.
#[cube(launch_unchecked, address_type = "dynamic")]
fn activate_backward<S: Numeric, W: Size, N: Size>(
    gate: &[Vector<S, W>],
    x: &[Vector<S, W>],
    d_y: &[Vector<S, W>],
    d_gate: &mut [Vector<S, W>],
    d_x: &mut [Vector<S, W>],
    all: usize,
    #[comptime] config: Config,
    #[define(S)] _dtype: ElemType,
) {
    let first = CUBE_POS * comptime!(THREADS * EACH) + UNIT_POS as usize;
    let mut gates = Array::<Vector<S, W>>::new(EACH);
    let mut factors = Array::<Vector<S, W>>::new(EACH);
    let mut gradients = Array::<Vector<S, W>>::new(EACH);
    #[unroll]
    for k in 0..EACH {
        let at = (first + k * THREADS).min(all - 1);
        gates[k] = gate[at];
        gradients[k] = d_y[at];
        if comptime!(config.gated) {
            factors[k] = x[at];
        }
    }
    #[unroll]
    for k in 0..EACH {
        let at = first + k * THREADS;
        if at < all {
            let gate = widen::<S, W, N>(gates[k], config.storage);
            let mut d = widen::<S, W, N>(gradients[k], config.storage);
            let mut slope = Vector::<f32, N>::new(0.0f32);
            let mut value = Vector::<f32, N>::new(0.0f32);
            #[unroll]
            for i in 0..N::value() {
                let point = at_number(gate.extract(i), config.nonlinearity, config.ptx);
                slope.insert(i, point.slope);
                value.insert(i, point.value);
            }
            if comptime!(config.gated) {
                d_x[at] = narrow::<S, W, N>(d * value, config.storage);
                d *= widen::<S, W, N>(factors[k], config.storage);
            }
            d_gate[at] = narrow::<S, W, N>(d * slope, config.storage);
        }
    }
}
