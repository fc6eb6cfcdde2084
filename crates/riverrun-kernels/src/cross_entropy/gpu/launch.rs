//! From shapes and buffers to launches.

use cubecl::client::Client;
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::kernels::{
    Config, cross_entropy_backward, cross_entropy_forward, cross_entropy_mean, cross_entropy_sum,
};
use crate::Error;
use crate::gpu::group::Group;
use crate::gpu::storage::Storage;
use crate::gpu::{Dtype, address, buffer, expect, grid, ptx, vector_width};

/// Buffers of a forward pass, all contiguous.
#[derive(Debug, Clone)]
pub struct Forward {
    /// `[rows, V]`.
    pub x: Handle,
    /// `[rows]`, of `index` type.
    pub targets: Handle,
    /// The type of the targets: 32- or 64-bit integers.
    pub index: ElemType,
    /// `[1]` in `f32`, written.
    pub loss: Handle,
    /// `[rows]` in `f32`, written.
    pub lse: Handle,
    /// `[1]` in `f32`, written: 1 over the number of rows that count.
    pub weight: Handle,
}

/// Buffers of a backward pass, all contiguous.
#[derive(Debug, Clone)]
pub struct Backward {
    /// `[rows, V]`, as in the forward pass.
    pub x: Handle,
    /// `[rows]`, as in the forward pass.
    pub targets: Handle,
    /// The type of the targets.
    pub index: ElemType,
    /// `[rows]`, as written by the forward pass.
    pub lse: Handle,
    /// `[1]`, as written by the forward pass.
    pub weight: Handle,
    /// `[1]` in `f32`.
    pub d_loss: Handle,
    /// `[rows, V]`, written.
    pub d_x: Handle,
}

/// The numbers that shape a launch; [`Tuning::default_for`] holds the measured ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    /// Bytes of a vector.
    pub bytes: usize,
    /// Vectors a thread loads ahead.
    pub ahead: usize,
    /// Vectors of a row for each thread of its group, approximately.
    pub per_thread: usize,
    /// Threads of a group, at most, and of a cube.
    pub units: usize,
}

impl Tuning {
    /// The tuning for rows of `vocab` logits.
    pub fn default_for(_vocab: usize, _dtype: Dtype, backward: bool) -> Self {
        Self {
            bytes: 16,
            ahead: if backward { 2 } else { 4 },
            per_thread: 8,
            units: 256,
        }
    }
}

/// The launch settings that both passes derive from their arguments.
struct Plan {
    config: Config,
    vector: usize,
    width: usize,
}

impl Plan {
    fn new(
        client: &Client,
        dtype: Dtype,
        [rows, vocab]: [usize; 2],
        tuning: Tuning,
        index: ElemType,
        backward: bool,
    ) -> Result<Self, Error> {
        dtype.check(client)?;
        if vocab == 0 {
            return Err(Error::NoChannels);
        }
        let ptx = ptx(client);
        let vector = vector_width(client, dtype, tuning.bytes, rows.saturating_mul(vocab));
        let storage = Storage::choose(client, dtype, vector);
        let vectors = if backward {
            // No rows: a cube is one group.
            tuning.units * tuning.per_thread
        } else {
            (vocab / vector).clamp(1, tuning.units * tuning.per_thread)
        };
        Ok(Self {
            config: Config {
                storage,
                ahead: tuning.ahead,
                ptx,
                wide: index.size() > 4,
                two: (vector..512).contains(&vocab),
                group: Group::choose(client, vectors, tuning.per_thread, tuning.units),
            },
            vector,
            width: storage.width(vector),
        })
    }
}

/// Computes the loss, `lse` and the weight of a row.
///
/// # Errors
/// [`Error::NoChannels`], [`Error::Dtype`], [`Error::Length`]; nothing has been launched then.
pub fn forward(
    client: &Client,
    dtype: Dtype,
    shape: [usize; 2],
    args: &Forward,
    tuning: Option<Tuning>,
) -> Result<(), Error> {
    let [rows, vocab] = shape;
    let tuning = tuning.unwrap_or_else(|| Tuning::default_for(vocab, dtype, false));
    let Plan {
        config,
        vector,
        width,
    } = Plan::new(client, dtype, shape, tuning, args.index, false)?;
    expect(
        dtype.size(),
        [("x", Some(&args.x), rows.saturating_mul(vocab))],
    )?;
    expect(args.index.size(), [("targets", Some(&args.targets), rows)])?;
    let numbers = [
        ("loss", Some(&args.loss), 1),
        ("lse", Some(&args.lse), rows),
        ("weight", Some(&args.weight), 1),
    ];
    expect(4, numbers)?;
    let losses = client.empty(rows.max(1) * 4);
    let count = rows.max(1);
    // SAFETY: the buffers have been checked or made for the shape.
    unsafe {
        if rows > 0 {
            cross_entropy_forward::launch_unchecked(
                client,
                grid(client, rows.div_ceil(config.group.rows)),
                config.group.dim(),
                address(rows * vocab, dtype),
                width,
                vector,
                buffer(&args.x, rows * vocab, vector),
                buffer(&args.targets, rows, 1),
                buffer(&args.lse, rows, 1),
                buffer(&losses, rows, 1),
                rows,
                vocab,
                config,
                config.storage.elem(dtype),
                args.index,
            );
        }
        let group = Group::choose(client, 256, 1, 256);
        let cubes = rows.div_ceil(4 * group.units).clamp(1, 256);
        let parts = client.empty(cubes * 8);
        cross_entropy_sum::launch_unchecked(
            client,
            grid(client, cubes),
            group.dim(),
            address(count, Dtype::F32),
            buffer(&losses, count, 1),
            buffer(&args.targets, rows, 1),
            buffer(&parts, 2 * cubes, 1),
            rows,
            group,
            args.index,
        );
        cross_entropy_mean::launch_unchecked(
            client,
            CubeCount::Static(1, 1, 1),
            group.dim(),
            buffer(&parts, 2 * cubes, 1),
            buffer(&args.loss, 1, 1),
            buffer(&args.weight, 1, 1),
            cubes,
            group,
        );
    }
    Ok(())
}

/// Computes `d_x`.
///
/// # Errors
/// As [`forward`].
pub fn backward(
    client: &Client,
    dtype: Dtype,
    shape: [usize; 2],
    args: &Backward,
    tuning: Option<Tuning>,
) -> Result<(), Error> {
    let [rows, vocab] = shape;
    let tuning = tuning.unwrap_or_else(|| Tuning::default_for(vocab, dtype, true));
    let Plan {
        config,
        vector,
        width,
    } = Plan::new(client, dtype, shape, tuning, args.index, true)?;
    let all = rows.saturating_mul(vocab);
    expect(
        dtype.size(),
        [("x", Some(&args.x), all), ("d_x", Some(&args.d_x), all)],
    )?;
    expect(args.index.size(), [("targets", Some(&args.targets), rows)])?;
    let numbers = [
        ("lse", Some(&args.lse), rows),
        ("weight", Some(&args.weight), 1),
        ("d_loss", Some(&args.d_loss), 1),
    ];
    expect(4, numbers)?;
    if all == 0 {
        return Ok(());
    }
    let cube = config.group.units * config.ahead;
    // SAFETY: the buffers have been checked or made for the shape.
    unsafe {
        cross_entropy_backward::launch_unchecked(
            client,
            grid(client, (all / vector).div_ceil(cube)),
            config.group.dim(),
            address(all, dtype),
            width,
            vector,
            buffer(&args.x, all, vector),
            buffer(&args.targets, rows, 1),
            buffer(&args.lse, rows, 1),
            buffer(&args.weight, 1, 1),
            buffer(&args.d_loss, 1, 1),
            buffer(&args.d_x, all, vector),
            rows,
            vocab,
            config,
            config.storage.elem(dtype),
            args.index,
        );
    }
    Ok(())
}
