//! On GPUs: a thread walks a run of steps of a vector of channels, with the inputs (backward: the gradients) that a step sees in
//! registers, so that every element is read once but for the few before a run.

mod kernels;

use cubecl::client::Client;
use cubecl::server::Handle;

use super::Shape;
use crate::Error;
use crate::gpu::copy::copy_or_zero;
use crate::gpu::strips::Strips;
use crate::gpu::{Dtype, buffer, expect};
use kernels::{Config, convolve, convolve_backward};

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

/// The most weights of a channel.
pub const LARGEST: usize = 64;

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
    if shape.taps > LARGEST {
        return Err(Error::Routine {
            routine: "short-convolution",
            reason: format!(
                "{} weights a channel, the kernel takes up to {LARGEST}",
                shape.taps
            ),
        });
    }
    let sizes = [shape.batch, shape.steps, shape.dim];
    // The inputs before a run are those of one other run.
    let strips = Strips::new(client, dtype, sizes, shape.before(), shape.taps + 1);
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
/// [`Error::NoChannels`], [`Error::Routine`] for more than [`LARGEST`] weights a channel, [`Error::Dtype`], [`Error::Length`];
/// nothing has been launched then.
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
