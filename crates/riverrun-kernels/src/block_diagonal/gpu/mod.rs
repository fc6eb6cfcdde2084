//! The GPU form: one routine, for blocks of up to [`LARGEST`] channels, on every device.
//!
//! A thread runs one block over all steps, so there are `B·N` lanes: with few of them a pass takes the latency of one step's
//! loads, `T` times.

mod walk;

use cubecl::client::Client;
use cubecl::ir::AddressType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::Problem;
use crate::Error;
use crate::gpu::copy::copy_or_zero;
use crate::gpu::{Dtype, address, buffer, expect, grid};
use walk::{Config, walk_backward, walk_forward};

/// The largest block whose state, matrix and gradients a thread keeps in registers.
pub const LARGEST: usize = 8;

/// Buffers of a forward pass, all contiguous.
#[derive(Debug, Clone)]
pub struct Forward {
    /// `[B, T, N, P, P]`.
    pub a: Handle,
    /// `[B, T, N·P]`.
    pub b: Handle,
    /// `[B, N·P]`.
    pub h0: Option<Handle>,
    /// `[B, T]`, in the storage type; not 0 means reset.
    pub reset: Option<Handle>,
    /// `[B, T, N·P]`, written.
    pub h: Handle,
}

/// Buffers of a backward pass, all contiguous.
#[derive(Debug, Clone)]
pub struct Backward {
    /// `[B, T, N, P, P]`, as in the forward pass.
    pub a: Handle,
    /// `[B, N·P]`, as in the forward pass.
    pub h0: Option<Handle>,
    /// `[B, T]`, as in the forward pass.
    pub reset: Option<Handle>,
    /// `[B, T, N·P]`, as written by the forward pass.
    pub h: Handle,
    /// `[B, T, N·P]`, `∂L/∂h`.
    pub d_h: Handle,
    /// `[B, N·P]`, `∂L/∂h_last`.
    pub d_h_last: Option<Handle>,
    /// `[B, T, N, P, P]`, written.
    pub d_a: Handle,
    /// `[B, T, N·P]`, written.
    pub d_b: Handle,
    /// `[B, N·P]`, written.
    pub d_h0: Handle,
}

/// The reason why the kernels cannot run a problem on this device, if they cannot.
///
/// # Errors
/// [`Error::NoChannels`], [`Error::Routine`] for blocks above [`LARGEST`], [`Error::Dtype`].
pub fn check(client: &Client, problem: &Problem, dtype: Dtype) -> Result<(), Error> {
    let size = problem.shape.size;
    if problem.shape.dim() == 0 {
        return Err(Error::NoChannels);
    }
    if size > LARGEST {
        return Err(Error::Routine {
            routine: "block-diagonal",
            reason: format!("blocks have {size} channels, the kernel takes up to {LARGEST}"),
        });
    }
    dtype.check(client)
}

/// The launch settings that both passes derive from the problem.
struct Plan {
    config: Config,
    address: AddressType,
    count: CubeCount,
    dim: CubeDim,
    lanes: usize,
}

impl Plan {
    fn new(client: &Client, problem: &Problem, dtype: Dtype) -> Result<Self, Error> {
        // Few lanes are spread over many cubes, and so over the whole device.
        const CUBE: usize = 64;
        // Elements of `A` that a thread has in flight.
        const IN_FLIGHT: usize = 32;

        check(client, problem, dtype)?;
        let shape = problem.shape;
        let size = shape.size;
        // At most 16 bytes a load.
        let widest = client.properties().hardware.max_vector_size;
        let widest = widest.min(16 / dtype.size());
        let divides = |v: &usize| size.is_multiple_of(*v) && *v <= widest;
        let vector = [8, 4, 2].into_iter().find(divides).unwrap_or(1);
        let lanes = shape.batch * shape.blocks;
        Ok(Self {
            config: Config {
                size,
                vector,
                len: (IN_FLIGHT / (size * size)).clamp(1, 8),
                reverse: problem.reverse,
                h0: false,
                reset: false,
                d_h_last: false,
            },
            address: address(shape.matrices(), dtype),
            count: grid(client, lanes.div_ceil(CUBE)),
            dim: CubeDim::new_1d(CUBE as u32),
            lanes,
        })
    }
}

/// Runs the recurrence forward, writing `h`.
///
/// # Errors
/// The errors of [`check`], [`Error::Length`]; nothing has been launched then.
pub fn forward(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    args: &Forward,
) -> Result<(), Error> {
    let plan = Plan::new(client, problem, dtype)?;
    let shape = problem.shape;
    let buffers = [
        ("A", Some(&args.a), shape.matrices()),
        ("b", Some(&args.b), shape.elements()),
        ("h0", args.h0.as_ref(), shape.state()),
        ("reset", args.reset.as_ref(), shape.rows()),
        ("h", Some(&args.h), shape.elements()),
    ];
    expect(dtype.size(), buffers)?;
    if shape.elements() == 0 {
        return Ok(());
    }
    let config = Config {
        h0: args.h0.is_some(),
        reset: args.reset.is_some(),
        ..plan.config
    };
    let v = config.vector;
    // Absent buffers are not read.
    let optional = |handle: &Option<Handle>, elements: usize, v: usize| match handle {
        Some(handle) => buffer(handle, elements, v),
        None => buffer(&args.b, shape.elements(), v),
    };
    // SAFETY: the buffers have been checked, and threads past the last lane end at once.
    unsafe {
        walk_forward::launch_unchecked(
            client,
            plan.count,
            plan.dim,
            plan.address,
            v,
            buffer(&args.a, shape.matrices(), v),
            buffer(&args.b, shape.elements(), v),
            optional(&args.h0, shape.state(), v),
            optional(&args.reset, shape.rows(), 1),
            buffer(&args.h, shape.elements(), v),
            plan.lanes,
            shape.steps,
            shape.blocks,
            config,
            dtype.elem(),
        );
    }
    Ok(())
}

/// Runs the recurrence backward, writing the gradients.
///
/// # Errors
/// The errors of [`check`], [`Error::Length`]; nothing has been launched then.
pub fn backward(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    args: &Backward,
) -> Result<(), Error> {
    let plan = Plan::new(client, problem, dtype)?;
    let shape = problem.shape;
    let buffers = [
        ("A", Some(&args.a), shape.matrices()),
        ("h0", args.h0.as_ref(), shape.state()),
        ("reset", args.reset.as_ref(), shape.rows()),
        ("h", Some(&args.h), shape.elements()),
        ("d_h", Some(&args.d_h), shape.elements()),
        ("d_h_last", args.d_h_last.as_ref(), shape.state()),
        ("d_A", Some(&args.d_a), shape.matrices()),
        ("d_b", Some(&args.d_b), shape.elements()),
        ("d_h0", Some(&args.d_h0), shape.state()),
    ];
    expect(dtype.size(), buffers)?;
    if shape.elements() == 0 {
        // After no steps the gradient of the last state is that of the first.
        copy_or_zero(
            client,
            dtype,
            args.d_h_last.as_ref(),
            &args.d_h0,
            shape.state(),
        );
        return Ok(());
    }
    let config = Config {
        h0: args.h0.is_some(),
        reset: args.reset.is_some(),
        d_h_last: args.d_h_last.is_some(),
        ..plan.config
    };
    let v = config.vector;
    let optional = |handle: &Option<Handle>, elements: usize, v: usize| match handle {
        Some(handle) => buffer(handle, elements, v),
        None => buffer(&args.h, shape.elements(), v),
    };
    // Safety: as in `forward`.
    unsafe {
        walk_backward::launch_unchecked(
            client,
            plan.count,
            plan.dim,
            plan.address,
            v,
            buffer(&args.a, shape.matrices(), v),
            buffer(&args.h, shape.elements(), v),
            optional(&args.h0, shape.state(), v),
            buffer(&args.d_h, shape.elements(), v),
            optional(&args.d_h_last, shape.state(), v),
            optional(&args.reset, shape.rows(), 1),
            buffer(&args.d_a, shape.matrices(), v),
            buffer(&args.d_b, shape.elements(), v),
            buffer(&args.d_h0, shape.state(), v),
            plan.lanes,
            shape.steps,
            shape.blocks,
            config,
            dtype.elem(),
        );
    }
    Ok(())
}
