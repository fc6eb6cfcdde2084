//! The GPU forms: one launch each, on every device.

mod kernels;

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::{Blocks, Draw};
use crate::Error;
use crate::gpu::group::Group;
use crate::gpu::storage::Storage;
use crate::gpu::{Dtype, address, buffer, expect, grid, ptx, vector_width};

/// Threads of a cube.
const UNITS: usize = 128;

/// Checks the buffers, each with its numbers, and returns the grid of `threads`; `None` where there is nothing to do.
fn prepare(
    client: &Client,
    dtype: Dtype,
    threads: usize,
    buffers: &[(&'static str, &Handle, usize)],
) -> Result<Option<CubeCount>, Error> {
    dtype.check(client)?;
    let sizes = buffers
        .iter()
        .map(|(what, handle, numbers)| (*what, Some(*handle), *numbers));
    expect(dtype.size(), sizes)?;
    Ok((threads > 0).then(|| grid(client, threads.div_ceil(UNITS))))
}

/// The numbers of a vector of 16 bytes, or of as many bytes as divide runs of `run` numbers, and their form.
fn vectors(client: &Client, dtype: Dtype, run: usize) -> (usize, Storage) {
    let v = vector_width(client, dtype, 16, run);
    (v, Storage::choose(client, dtype, v))
}

const fn threads() -> CubeDim {
    CubeDim::new_1d(UNITS as u32)
}

/// `y: [G, B, W]` from `x: [B, D]`.
///
/// # Errors
/// [`Error::Dtype`], [`Error::Length`]; nothing has been launched then.
pub fn activate(
    client: &Client,
    dtype: Dtype,
    blocks: Blocks,
    x: &Handle,
    y: &Handle,
) -> Result<(), Error> {
    let n = blocks.numbers();
    let Some(grid) = prepare(client, dtype, n, &[("x", x, n), ("y", y, n)])? else {
        return Ok(());
    };
    // SAFETY: the lengths have been checked; the kernel indexes within them. The same below.
    unsafe {
        kernels::activate::launch_unchecked(
            client,
            grid,
            threads(),
            address(n, dtype),
            buffer(x, n, 1),
            buffer(y, n, 1),
            blocks.batch,
            blocks.blocks,
            blocks.width,
            ptx(client),
            dtype.elem(),
        );
    }
    Ok(())
}

/// `∂L/∂x: [B, D]` from `∂L/∂y: [G, B, W]`.
///
/// # Errors
/// As [`activate`].
pub fn activate_backward(
    client: &Client,
    dtype: Dtype,
    blocks: Blocks,
    [x, d_y]: [&Handle; 2],
    d_x: &Handle,
) -> Result<(), Error> {
    let n = blocks.numbers();
    let buffers = [("x", x, n), ("d_y", d_y, n), ("d_x", d_x, n)];
    let Some(grid) = prepare(client, dtype, n, &buffers)? else {
        return Ok(());
    };
    // SAFETY: as in `activate`.
    unsafe {
        kernels::activate_backward::launch_unchecked(
            client,
            grid,
            threads(),
            address(n, dtype),
            buffer(x, n, 1),
            buffer(d_y, n, 1),
            buffer(d_x, n, 1),
            blocks.batch,
            blocks.blocks,
            blocks.width,
            ptx(client),
            dtype.elem(),
        );
    }
    Ok(())
}

/// The gates of a step, in the layout of the product that computed them.
#[derive(Debug, Clone, Copy)]
pub struct Gates<'a> {
    /// Rows of `3W` contiguous numbers.
    pub gates: &'a Handle,
    /// Numbers from a block of one state to that of the next, and from one block of a state to the next.
    pub strides: [usize; 2],
    /// `[G, 3W]`, to be added.
    pub bias: Option<&'a Handle>,
}

impl<'a> Gates<'a> {
    /// `[G, B, 3W]`, contiguous, the bias within.
    pub fn in_blocks(gates: &'a Handle, blocks: Blocks) -> Self {
        let row = 3 * blocks.width;
        Self {
            gates,
            strides: [row, blocks.batch * row],
            bias: None,
        }
    }
}

/// The next states `[B, D]` from the gates and the states.
///
/// # Errors
/// As [`activate`].
pub fn step(
    client: &Client,
    dtype: Dtype,
    blocks: Blocks,
    gates: Gates<'_>,
    before: &Handle,
    next: &Handle,
) -> Result<(), Error> {
    let n = blocks.numbers();
    let [state, block] = gates.strides;
    let row = 3 * blocks.width;
    let last = |count: usize, stride: usize| (count.max(1) - 1).saturating_mul(stride);
    let extent = row + last(blocks.batch, state) + last(blocks.blocks, block);
    let of_gates = if n == 0 { 0 } else { extent };
    let bias = gates.bias.unwrap_or(before);
    let of_bias = gates.bias.map_or(n, |_| blocks.blocks * row);
    let buffers = [
        ("gates", gates.gates, of_gates),
        ("bias", bias, of_bias),
        ("before", before, n),
        ("next", next, n),
    ];
    let (v, storage) = vectors(client, dtype, blocks.width | state | block);
    let Some(grid) = prepare(client, dtype, n / v, &buffers)? else {
        return Ok(());
    };
    // SAFETY: as in `activate`.
    unsafe {
        kernels::step::launch_unchecked(
            client,
            grid,
            threads(),
            address(extent, dtype),
            storage.width(v),
            v,
            buffer(gates.gates, extent, v),
            buffer(bias, of_bias, v),
            buffer(before, n, v),
            buffer(next, n, v),
            blocks.batch,
            blocks.blocks,
            blocks.width / v,
            state / v,
            block / v,
            gates.bias.is_some(),
            storage,
            ptx(client),
            storage.elem(dtype),
        );
    }
    Ok(())
}

/// Inputs of [`norm_silu`]: rows of `width` numbers, each with the weights and the epsilon of a norm.
#[derive(Debug, Clone, Copy)]
pub enum Rows<'a> {
    /// `silu(RMSNorm(x))`.
    One(&'a Handle, (&'a Handle, f64)),
    /// `silu(RMSNorm(x + z))`.
    Sum([&'a Handle; 2], (&'a Handle, f64)),
    /// `silu(RMSNorm(x))`, `silu(RMSNorm(z))` and the third rows as they are, beside each other.
    Three([&'a Handle; 3], [(&'a Handle, f64); 2]),
}

/// Norms and activations in one launch, `[rows, width]`, or `[rows, 3 width]` of three.
///
/// # Errors
/// As [`activate`].
pub fn norm_silu(
    client: &Client,
    dtype: Dtype,
    [rows, width]: [usize; 2],
    given: Rows<'_>,
    y: &Handle,
) -> Result<(), Error> {
    let n = rows.saturating_mul(width);
    let (form, [x, z, third], [own, other]) = match given {
        Rows::One(x, norm) => (kernels::Form::One, [x; 3], [norm; 2]),
        Rows::Sum([x, z], norm) => (kernels::Form::Sum, [x, z, x], [norm; 2]),
        Rows::Three(tensors, norms) => (kernels::Form::Three, tensors, norms),
    };
    let parts = form.parts();
    let buffers = [
        ("x", x, n),
        ("the second rows", z, n),
        ("the third rows", third, n),
        ("gamma", own.0, width),
        ("the second gamma", other.0, width),
        ("y", y, n.saturating_mul(parts)),
    ];
    if prepare(client, dtype, n, &buffers)?.is_none() {
        return Ok(());
    }
    let (v, storage) = vectors(client, dtype, width);
    let cols = width / v;
    let group = Group::choose(client, cols, 1, UNITS);
    // SAFETY: as in `activate`.
    unsafe {
        kernels::norm_silu::launch_unchecked(
            client,
            grid(client, (rows * parts).div_ceil(group.rows)),
            group.dim(),
            address(n.saturating_mul(parts), dtype),
            storage.width(v),
            v,
            buffer(x, n, v),
            buffer(z, n, v),
            buffer(third, n, v),
            buffer(own.0, width, v),
            buffer(other.0, width, v),
            buffer(y, n * parts, v),
            rows,
            cols,
            own.1 as f32,
            other.1 as f32,
            kernels::Normed {
                form,
                each: cols.div_ceil(group.units),
                group,
                storage,
                ptx: ptx(client),
            },
            storage.elem(dtype),
        );
    }
    Ok(())
}

/// `∂L/∂a: [G, B, 3W]` and `∂L/∂d: [B, D]` from `∂L/∂d': [B, D]`.
///
/// # Errors
/// As [`activate`].
pub fn step_backward(
    client: &Client,
    dtype: Dtype,
    blocks: Blocks,
    [gates, before, d_next]: [&Handle; 3],
    [d_gates, d_before]: [&Handle; 2],
) -> Result<(), Error> {
    let n = blocks.numbers();
    let buffers = [
        ("gates", gates, 3 * n),
        ("before", before, n),
        ("d_next", d_next, n),
        ("d_gates", d_gates, 3 * n),
        ("d_before", d_before, n),
    ];
    let Some(grid) = prepare(client, dtype, n, &buffers)? else {
        return Ok(());
    };
    // SAFETY: as in `activate`.
    unsafe {
        kernels::step_backward::launch_unchecked(
            client,
            grid,
            threads(),
            address(3 * n, dtype),
            buffer(gates, 3 * n, 1),
            buffer(before, n, 1),
            buffer(d_next, n, 1),
            buffer(d_gates, 3 * n, 1),
            buffer(d_before, n, 1),
            blocks.batch,
            blocks.blocks,
            blocks.width,
            ptx(client),
            dtype.elem(),
        );
    }
    Ok(())
}

/// One-hot samples `[N, C]` from logits `[N, C]` and the `nth` noise of an array `[.., N, C]` in `f32`.
///
/// # Errors
/// As [`activate`].
pub fn draw(
    client: &Client,
    dtype: Dtype,
    draw: Draw,
    logits: &Handle,
    (noise, nth): (&Handle, usize),
    sample: &Handle,
) -> Result<(), Error> {
    let n = draw.numbers();
    let all = (nth + 1) * n;
    expect(Dtype::F32.size(), [("noise", Some(noise), all)])?;
    let buffers = [("logits", logits, n), ("sample", sample, n)];
    let rows = if draw.classes == 0 { 0 } else { draw.rows };
    let (v, storage) = vectors(client, dtype, draw.classes);
    let Some(grid) = prepare(client, dtype, rows, &buffers)? else {
        return Ok(());
    };
    // SAFETY: as in `activate`.
    unsafe {
        kernels::draw::launch_unchecked(
            client,
            grid,
            threads(),
            address(all, Dtype::F32),
            storage.width(v),
            v,
            buffer(logits, n, v),
            buffer(noise, all, v),
            buffer(sample, n, v),
            rows,
            draw.classes / v,
            nth * n / v,
            draw.unimix,
            storage,
            ptx(client),
            storage.elem(dtype),
        );
    }
    Ok(())
}

/// `∂L/∂logits` from `∂L/∂sample`, both `[N, C]`.
///
/// # Errors
/// As [`activate`].
pub fn draw_backward(
    client: &Client,
    dtype: Dtype,
    draw: Draw,
    [logits, d_sample]: [&Handle; 2],
    d_logits: &Handle,
) -> Result<(), Error> {
    let n = draw.numbers();
    let buffers = [
        ("logits", logits, n),
        ("d_sample", d_sample, n),
        ("d_logits", d_logits, n),
    ];
    let rows = if draw.classes == 0 { 0 } else { draw.rows };
    let (v, storage) = vectors(client, dtype, draw.classes);
    let Some(grid) = prepare(client, dtype, rows, &buffers)? else {
        return Ok(());
    };
    // SAFETY: as in `activate`.
    unsafe {
        kernels::draw_backward::launch_unchecked(
            client,
            grid,
            threads(),
            address(n, dtype),
            storage.width(v),
            v,
            buffer(logits, n, v),
            buffer(d_sample, n, v),
            buffer(d_logits, n, v),
            rows,
            draw.classes / v,
            draw.unimix,
            storage,
            ptx(client),
            storage.elem(dtype),
        );
    }
    Ok(())
}
