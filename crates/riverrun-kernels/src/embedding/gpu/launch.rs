//! From shapes and buffers to launches.

use cubecl::client::Client;
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::count::{clear_counts, count_tokens, place_tokens, scan_rows, scan_sums};
use super::sum::{finish_rows, gather_rows, sum_groups, sum_pieces};
use super::{GROUP, LANES, PLANES, UNITS};
use crate::Error;
use crate::embedding::Shape;
use crate::gpu::copy::copy_or_zero;
use crate::gpu::{Dtype, address, buffer, expect, grid, vector_width};

/// Buffers of a forward pass, all contiguous.
#[derive(Debug, Clone)]
pub struct Forward {
    /// `[V, D]`.
    pub weight: Handle,
    /// `[N]`, of `index` type.
    pub tokens: Handle,
    /// The type of the tokens: 32- or 64-bit integers.
    pub index: ElemType,
    /// `[N, D]`, written.
    pub y: Handle,
}

/// Buffers of a backward pass, all contiguous.
#[derive(Debug, Clone)]
pub struct Backward {
    /// `[N, D]`, `∂L/∂y`.
    pub d_y: Handle,
    /// `[N]`, as in the forward pass.
    pub tokens: Handle,
    /// The type of the tokens.
    pub index: ElemType,
    /// `[V, D]`, written.
    pub d_weight: Handle,
}

/// Checks what both passes share: sizes that 32-bit words can count, and the buffers.
fn check(
    client: &Client,
    dtype: Dtype,
    shape: Shape,
    tokens: (&Handle, ElemType),
    rows: (&'static str, &Handle),
    table: (&'static str, &Handle),
) -> Result<(), Error> {
    dtype.check(client)?;
    shape.check()?;
    for (what, found) in [("tokens", shape.tokens), ("rows of a table", shape.vocab)] {
        let expected = i32::MAX as usize - 1;
        if found > expected {
            return Err(Error::Length {
                what,
                expected,
                found,
            });
        }
    }
    let (tokens, index) = tokens;
    expect(index.size(), [("tokens", Some(tokens), shape.tokens)])?;
    let floats = [
        (rows.0, Some(rows.1), shape.outputs()),
        (table.0, Some(table.1), shape.table()),
    ];
    expect(dtype.size(), floats)
}

/// Computes `y`, one launch.
///
/// # Errors
/// [`Error::NoChannels`], [`Error::Dtype`], [`Error::Length`]; nothing has been launched then.
pub fn forward(client: &Client, dtype: Dtype, shape: Shape, args: &Forward) -> Result<(), Error> {
    check(
        client,
        dtype,
        shape,
        (&args.tokens, args.index),
        ("y", &args.y),
        ("weight", &args.weight),
    )?;
    if shape.tokens == 0 {
        return Ok(());
    }
    let v = vector_width(client, dtype, 16, shape.dim);
    let vectors = shape.outputs() / v;
    // SAFETY: the buffers have been checked, and threads past the end do nothing.
    unsafe {
        gather_rows::launch_unchecked(
            client,
            grid(client, vectors.div_ceil(UNITS)),
            CubeDim::new_1d(UNITS as u32),
            address(shape.outputs().max(shape.table()), dtype),
            v,
            buffer(&args.weight, shape.table(), v),
            buffer(&args.tokens, shape.tokens, 1),
            buffer(&args.y, shape.outputs(), v),
            shape.vocab as u32,
            shape.dim / v,
            dtype.elem(),
            args.index,
        );
    }
    Ok(())
}

/// Tokens that each thread of a counting cube takes: the larger the blocks, the fewer counts, and the more comparisons
/// in each block.
fn tokens_each(shape: Shape) -> usize {
    let counts = |each: usize| {
        let blocks = shape.tokens.div_ceil(UNITS * each);
        blocks.saturating_mul(shape.vocab + 1)
    };
    if counts(1) <= 1 << 22 { 1 } else { 4 }
}

/// Tokens in order of their rows.
struct Sorted {
    /// `[N]`, positions.
    order: Handle,
    /// `[N]`, rows.
    rows: Handle,
    /// `[V + 1]`, starts of segments within 256 rows, and `sums`, starts of those.
    starts: Handle,
    sums: Handle,
}

fn sort(client: &Client, shape: Shape, tokens: &Handle, index: ElemType) -> Sorted {
    let each = tokens_each(shape);
    let (count, rows) = (shape.tokens, shape.vocab + 1);
    let blocks = count.div_ceil(UNITS * each);
    let counts_len = blocks * rows;
    let cubes = rows.div_ceil(UNITS);
    let words = |n: usize| client.empty(n * 4);
    let counts = words(counts_len);
    let ranks = words(count);
    let sorted = Sorted {
        order: words(count),
        rows: words(count),
        starts: words(rows),
        sums: words(cubes),
    };
    let vocab = shape.vocab as u32;
    let dim = CubeDim::new_1d(UNITS as u32);
    let far = address(counts_len.max(2 * count), Dtype::F32);
    // SAFETY: the buffers are made for these lengths or have been checked; threads past an end do nothing.
    unsafe {
        clear_counts::launch_unchecked(
            client,
            grid(client, counts_len.div_ceil(4 * UNITS)),
            dim,
            far,
            buffer(&counts, counts_len, 1),
        );
        count_tokens::launch_unchecked(
            client,
            grid(client, blocks),
            dim,
            far,
            buffer(tokens, count, 1),
            buffer(&ranks, count, 1),
            buffer(&counts, counts_len, 1),
            vocab,
            each,
            index,
        );
        scan_rows::launch_unchecked(
            client,
            grid(client, cubes),
            dim,
            far,
            buffer(&counts, counts_len, 1),
            buffer(&sorted.starts, rows, 1),
            buffer(&sorted.sums, cubes, 1),
            rows,
            blocks,
        );
        scan_sums::launch_unchecked(
            client,
            CubeCount::Static(1, 1, 1),
            dim,
            buffer(&sorted.sums, cubes, 1),
        );
        place_tokens::launch_unchecked(
            client,
            grid(client, count.div_ceil(UNITS)),
            dim,
            far,
            buffer(tokens, count, 1),
            buffer(&ranks, count, 1),
            buffer(&counts, counts_len, 1),
            buffer(&sorted.starts, rows, 1),
            buffer(&sorted.sums, cubes, 1),
            buffer(&sorted.order, count, 1),
            buffer(&sorted.rows, count, 1),
            vocab,
            each,
            index,
        );
    }
    sorted
}

/// Computes `d_weight`; every element is written.
///
/// # Errors
/// As [`forward`].
pub fn backward(client: &Client, dtype: Dtype, shape: Shape, args: &Backward) -> Result<(), Error> {
    check(
        client,
        dtype,
        shape,
        (&args.tokens, args.index),
        ("d_y", &args.d_y),
        ("d_weight", &args.d_weight),
    )?;
    let (count, table) = (shape.tokens, shape.table());
    if count == 0 {
        copy_or_zero(client, dtype, None, &args.d_weight, table);
        return Ok(());
    }
    let sorted = sort(client, shape, &args.tokens, args.index);
    let v = vector_width(client, dtype, 16, shape.dim);
    let cols = shape.dim / v;
    let pieces = count.div_ceil(LANES);
    let groups = pieces.div_ceil(GROUP);
    let partials_len = 2 * pieces * shape.dim;
    let groups_len = groups * shape.dim;
    let partials = client.empty(partials_len * 4);
    let group_sums = client.empty(groups_len * 4);
    let vocab = shape.vocab as u32;
    let rows = CubeDim::new_2d(LANES as u32, PLANES as u32);
    let most = shape.outputs().max(table).max(partials_len);
    let far = address(most, Dtype::F32);
    // SAFETY: the buffers have been checked or are made for these lengths; threads past an end do nothing.
    unsafe {
        sum_pieces::launch_unchecked(
            client,
            grid(client, pieces.div_ceil(PLANES)),
            rows,
            far,
            v,
            buffer(&args.d_y, shape.outputs(), v),
            buffer(&sorted.order, count, 1),
            buffer(&sorted.rows, count, 1),
            buffer(&args.d_weight, table, v),
            buffer(&partials, partials_len, v),
            vocab,
            cols,
            dtype.elem(),
        );
        sum_groups::launch_unchecked(
            client,
            grid(client, (groups_len / v).div_ceil(UNITS)),
            CubeDim::new_1d(UNITS as u32),
            far,
            v,
            buffer(&sorted.rows, count, 1),
            buffer(&partials, partials_len, v),
            buffer(&group_sums, groups_len, v),
            cols,
        );
        finish_rows::launch_unchecked(
            client,
            grid(client, shape.vocab.div_ceil(PLANES)),
            rows,
            far,
            v,
            buffer(&sorted.starts, shape.vocab + 1, 1),
            buffer(&sorted.sums, (shape.vocab + 1).div_ceil(UNITS), 1),
            buffer(&partials, partials_len, v),
            buffer(&group_sums, groups_len, v),
            buffer(&args.d_weight, table, v),
            vocab,
            cols,
            dtype.elem(),
        );
    }
    Ok(())
}
