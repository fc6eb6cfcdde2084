//! On GPUs: a thread walks a run of steps of a vector of channels, with the inputs (backward: the gradients) that a step sees in
//! registers, so that every element is read once but for the few before a run.

mod backward;
mod forward;
mod window;

use cubecl::client::Client;
use cubecl::server::Handle;

use super::Shape;
use crate::Error;
use crate::activation::Nonlinearity;
use crate::error::expect_length;
use crate::gpu::copy::copy_or_zero;
use crate::gpu::strips::{Columns, Strips};
use crate::gpu::{Dtype, buffer, expect, ptx};
use backward::convolve_backward;
use forward::convolve;
use window::Config;

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
    /// Whether `y` is the SiLU of the convolution.
    pub silu: bool,
    /// The parts of `y`, `[B, T, channels]` each, whose channels together are `D`; written.
    pub y: Vec<(usize, Handle)>,
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
    /// As in the forward pass; read for SiLU alone.
    pub bias: Option<Handle>,
    /// As in the forward pass.
    pub state: Option<Handle>,
    /// As in the forward pass.
    pub reset: Option<Handle>,
    /// As in the forward pass.
    pub silu: bool,
    /// `∂L/∂y` in the parts of `y`.
    pub d_y: Vec<(usize, Handle)>,
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
    parts: &[(usize, Handle)],
    silu: bool,
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
    let widths: Vec<usize> = parts.iter().map(|(channels, _)| *channels).collect();
    expect_length("the channels of the parts", shape.dim, widths.iter().sum())?;
    let rows = [shape.batch, shape.steps];
    // The inputs before a run are those of one other run.
    let strips = Strips::new(client, dtype, rows, &widths, shape.before(), shape.taps + 1);
    let config = Config {
        taps: shape.taps,
        storage: strips.storage,
        runs: strips.runs,
        units: strips.units(),
        bias,
        state,
        reset,
        nonlinearity: silu.then_some(Nonlinearity::Silu),
        ptx: ptx(client),
        d_last,
    };
    Ok((strips, config))
}

/// The parts that have channels, and their columns.
fn columns<'a>(
    strips: &'a Strips,
    parts: &'a [(usize, Handle)],
) -> impl Iterator<Item = (Columns, usize, &'a Handle)> {
    let mut first = 0;
    let place = move |(channels, handle): &'a (usize, Handle)| {
        let columns = strips.columns(first, *channels);
        first += channels;
        (columns, *channels, handle)
    };
    parts
        .iter()
        .map(place)
        .filter(|(_, channels, _)| *channels > 0)
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
    let (strips, config) = plan(client, shape, dtype, &args.y, args.silu, flags)?;
    let (all, state) = (shape.elements(), shape.state());
    let buffers = [
        ("x", Some(&args.x), all),
        ("weight", Some(&args.weight), shape.weights()),
        ("bias", args.bias.as_ref(), shape.dim),
        ("state", args.state.as_ref(), state),
        ("reset", args.reset.as_ref(), shape.rows()),
        ("the last state", Some(&args.last), state),
    ];
    let rows = shape.rows();
    let parts = args.y.iter();
    let parts = parts.map(|(channels, y)| ("y", Some(y), rows.saturating_mul(*channels)));
    expect(dtype.size(), buffers.into_iter().chain(parts))?;
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
    for (columns, channels, y) in columns(&strips, &args.y) {
        // SAFETY: the buffers have been checked, and threads without a row or columns read the last ones and write nothing.
        unsafe {
            convolve::launch_unchecked(
                client,
                strips.count(client, columns),
                strips.dim(),
                strips.address(1, dtype),
                strips.storage.width(v),
                v,
                buffer(&args.x, all, v),
                buffer(&args.weight, shape.weights(), v),
                optional(&args.bias, shape.dim, v),
                optional(&args.state, state, v),
                optional(&args.reset, rows, 1),
                buffer(y, rows * channels, v),
                buffer(&args.last, state, v),
                strips.sizes(columns),
                config,
                strips.storage.elem(dtype),
                dtype.elem(),
            );
        }
    }
    Ok(())
}

/// Computes the gradients.
///
/// # Errors
/// As [`forward`].
pub fn backward(client: &Client, shape: Shape, dtype: Dtype, args: &Backward) -> Result<(), Error> {
    let flags = [
        args.silu && args.bias.is_some(),
        args.state.is_some(),
        args.reset.is_some(),
        args.d_last.is_some(),
    ];
    let (strips, config) = plan(client, shape, dtype, &args.d_y, args.silu, flags)?;
    let (all, state) = (shape.elements(), shape.state());
    let buffers = [
        ("x", Some(&args.x), all),
        ("weight", Some(&args.weight), shape.weights()),
        ("bias", args.bias.as_ref(), shape.dim),
        ("state", args.state.as_ref(), state),
        ("reset", args.reset.as_ref(), shape.rows()),
        ("d_last", args.d_last.as_ref(), state),
        ("d_x", Some(&args.d_x), all),
        ("d_weight", Some(&args.d_weight), shape.weights()),
        ("d_bias", Some(&args.d_bias), shape.dim),
        ("d_state", Some(&args.d_state), state),
    ];
    let rows = shape.rows();
    let parts = args.d_y.iter();
    let parts = parts.map(|(channels, d)| ("d_y", Some(d), rows.saturating_mul(*channels)));
    expect(dtype.size(), buffers.into_iter().chain(parts))?;
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
        for (columns, channels, d_y) in columns(&strips, &args.d_y) {
            // SAFETY: as in `forward`.
            unsafe {
                convolve_backward::launch_unchecked(
                    client,
                    strips.count(client, columns),
                    strips.dim(),
                    strips.address(1, dtype),
                    strips.storage.width(v),
                    v,
                    buffer(&args.x, all, v),
                    buffer(&args.weight, shape.weights(), v),
                    optional(&args.bias, shape.dim, v),
                    optional(&args.state, state, v),
                    optional(&args.reset, rows, 1),
                    buffer(d_y, rows * channels, v),
                    optional(&args.d_last, state, v),
                    buffer(&args.d_x, all, v),
                    buffer(&args.d_state, state, v),
                    buffer(&parts, strips.elements(sums), v),
                    strips.sizes(columns),
                    config,
                    strips.storage.elem(dtype),
                    dtype.elem(),
                );
            }
        }
    }
    strips.total(client, dtype, &parts, sums, [0, shape.taps], &args.d_weight);
    strips.total(client, dtype, &parts, sums, [shape.taps, 1], &args.d_bias);
    Ok(())
}
