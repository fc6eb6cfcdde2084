//! On GPUs: a thread for each vector of channels, written once.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::Problem;
use crate::Error;
use crate::gpu::storage::{Storage, narrow, widen};
use crate::gpu::{Dtype, address, buffer, expect, grid, vector_width};

/// Threads of a cube.
const CUBE: usize = 256;

/// Vectors of a thread, whose loads are in flight together.
const EACH: usize = 4;

/// Writes `y` from `x`, both `[rows, H, D]`, with the angles `[N, P]`; all contiguous.
///
/// # Errors
/// [`Error::Dtype`], [`Error::Length`], [`Error::NoChannels`]; nothing has been launched then.
pub fn turn(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    x: &Handle,
    [cos, sin]: [&Handle; 2],
    y: &Handle,
) -> Result<(), Error> {
    dtype.check(client)?;
    let (all, angles, pairs) = (problem.elements(), problem.angles(), problem.pairs);
    problem.check([all, angles, angles, all])?;
    let buffers = [
        ("x", Some(x), all),
        ("cos", Some(cos), angles),
        ("sin", Some(sin), angles),
        ("y", Some(y), all),
    ];
    expect(dtype.size(), buffers)?;
    if all == 0 {
        return Ok(());
    }
    // A power of two that divides the pairs and a head.
    let v = vector_width(client, dtype, 16, pairs | problem.dim);
    let storage = Storage::choose(client, dtype, v);
    // SAFETY: the buffers have been checked, and the kernel checks its positions.
    unsafe {
        turn_rows::launch_unchecked(
            client,
            grid(client, (all / v).div_ceil(CUBE * EACH)),
            CubeDim::new_1d(CUBE as u32),
            address(all, dtype),
            storage.width(v),
            v,
            buffer(x, all, v),
            buffer(cos, angles, v),
            buffer(sin, angles, v),
            buffer(y, all, v),
            all / v,
            problem.dim / v,
            problem.heads,
            problem.turned,
            problem.steps,
            pairs / v,
            if problem.back { -1.0 } else { 1.0 },
            storage,
            storage.elem(dtype),
        );
    }
    Ok(())
}

/// `dim` and `pairs` count vectors.
#[cube(launch_unchecked, address_type = "dynamic")]
fn turn_rows<S: Numeric, W: Size, N: Size>(
    x: &[Vector<S, W>],
    cos: &[Vector<S, W>],
    sin: &[Vector<S, W>],
    y: &mut [Vector<S, W>],
    all: usize,
    dim: usize,
    heads: usize,
    turned: usize,
    steps: usize,
    pairs: usize,
    sign: f32,
    #[comptime] storage: Storage,
    #[define(S)] _dtype: ElemType,
) {
    let first = CUBE_POS * comptime!(CUBE * EACH) + UNIT_POS as usize;
    let mut own = Array::<Vector<S, W>>::new(EACH);
    let mut other = Array::<Vector<S, W>>::new(EACH);
    let mut angle = Array::<usize>::new(EACH);
    // The factor of the pair's other channel; 0 for a channel that is copied.
    let mut part = Array::<f32>::new(EACH);
    #[unroll]
    for k in 0..EACH {
        let at = (first + k * CUBE).min(all - 1);
        let channel = at % dim;
        let head = at / dim % heads;
        let low = channel < pairs;
        let turns = head < turned && channel < 2 * pairs;
        let pair = select(low, at + pairs, at - select(turns, pairs, 0usize));
        angle[k] = at / dim / heads % steps * pairs + select(low, channel, channel - pairs);
        angle[k] = select(turns, angle[k], 0usize);
        part[k] = select(turns, select(low, 0.0f32 - sign, sign), 0.0f32);
        own[k] = x[at];
        other[k] = x[select(turns, pair, at)];
    }
    #[unroll]
    for k in 0..EACH {
        let at = first + k * CUBE;
        if at < all {
            if part[k] == 0.0f32 {
                y[at] = own[k];
            } else {
                let c = widen::<S, W, N>(cos[angle[k]], storage);
                let s = widen::<S, W, N>(sin[angle[k]], storage);
                let s = s * Vector::<f32, N>::new(part[k]);
                let a = widen::<S, W, N>(own[k], storage);
                let b = widen::<S, W, N>(other[k], storage);
                y[at] = narrow::<S, W, N>(fma(b, s, a * c), storage);
            }
        }
    }
}
