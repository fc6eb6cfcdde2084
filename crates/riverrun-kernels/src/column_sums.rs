//! The sums of a matrix's columns, on GPUs: the gradient of what is the same for every row.
//!
//! A thread adds up a run of rows of a vector of columns; a cube adds up its threads' sums, and a second launch those of the cubes,
//! all in order.
//!
//! **Precision.** Storage `f32`, `f16`, `bf16`; sums in `f32`, rounded once. The order of every sum is fixed by the shape and the
//! device, so results are bit-equal from run to run.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::Error;
use crate::gpu::storage::{Storage, widen};
use crate::gpu::strips::{Sizes, Strips, lane, write_parts};
use crate::gpu::{Dtype, buffer, expect};

/// Rows that a thread loads at a time.
const TILE: usize = 8;

/// Rows of a thread, at least.
const SHORTEST: usize = 16;

/// The values that change the generated code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Config {
    storage: Storage,
    runs: usize,
    units: usize,
}

/// Writes the sums of the columns of `x`, `[rows, columns]`, to `sums`, `[columns]`; zeros without rows.
///
/// # Errors
/// [`Error::NoChannels`], [`Error::Dtype`], [`Error::Length`]; nothing has been launched then.
pub fn column_sums(
    client: &Client,
    dtype: Dtype,
    [rows, columns]: [usize; 2],
    x: &Handle,
    sums: &Handle,
) -> Result<(), Error> {
    dtype.check(client)?;
    if columns == 0 {
        return Err(Error::NoChannels);
    }
    let all = rows.saturating_mul(columns);
    expect(
        dtype.size(),
        [("x", Some(x), all), ("sums", Some(sums), columns)],
    )?;
    let strips = Strips::new(client, dtype, [1, rows], &[columns], SHORTEST, 1);
    let parts = strips.scratch(client, 1);
    if rows > 0 {
        let (v, whole) = (strips.vector, strips.whole());
        let config = Config {
            storage: strips.storage,
            runs: strips.runs,
            units: strips.units(),
        };
        // SAFETY: the buffers have been checked, and threads without a row or columns read nothing.
        unsafe {
            sum_rows::launch_unchecked(
                client,
                strips.count(client, whole),
                strips.dim(),
                strips.address(1, dtype),
                strips.storage.width(v),
                v,
                buffer(x, all, v),
                buffer(&parts, strips.elements(1), v),
                strips.sizes(whole),
                config,
                strips.storage.elem(dtype),
            );
        }
    }
    strips.total(client, dtype, &parts, 1, [0, 1], sums);
    Ok(())
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn sum_rows<S: Numeric, W: Size, N: Size>(
    x: &[Vector<S, W>],
    parts: &mut [Vector<f32, N>],
    sizes: Sizes,
    #[comptime] config: Config,
    #[define(S)] _dtype: ElemType,
) {
    let lane = lane(&sizes, config.runs);
    let zero = Vector::<f32, N>::new(0.0f32);
    let mut sums = Array::<Vector<f32, N>>::new(1usize);
    sums[0] = zero;
    for tile in 0..(lane.end - lane.first).div_ceil(TILE) {
        let first = lane.first + tile * TILE;
        let mut rows = Array::<Vector<S, W>>::new(TILE);
        #[unroll]
        for u in 0..TILE {
            rows[u] = x[(first + u).min(lane.end - 1) * sizes.cols + lane.col];
        }
        #[unroll]
        for u in 0..TILE {
            if first + u < lane.end {
                sums[0] += widen::<S, W, N>(rows[u], config.storage);
            }
        }
    }
    write_parts::<N>(
        &sums,
        parts,
        &lane,
        &sizes,
        1usize,
        config.runs,
        config.units,
    );
}
