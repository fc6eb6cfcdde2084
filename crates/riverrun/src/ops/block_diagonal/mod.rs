//! The block-diagonal recurrence on tensors.

#[cfg(feature = "autodiff")]
mod autodiff;
mod backend;
mod composed;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;

pub use backend::{BlockDiagonalOps, BlockGradients};

use burn::backend::Dispatch;
use burn::tensor::{Bool, Tensor};

use super::hand_over::{State, StateKind, handed_over};
use super::recurrence::{SavedStates, ScanOptions};
use super::support::lengths::{fill, padding, unpadded_reset};
use super::support::{Maybe, checks};
use crate::{Error, Sequence};

/// `h_t = A_t h_{t-1} + b_t`, `A_t` block-diagonal: `N` blocks of `P` channels, `D = N·P`.
///
/// Kernels on the CPU, and on GPUs for blocks of up to 8 channels: see [`riverrun_kernels::block_diagonal`]. Larger blocks on a
/// GPU are computed by tensor operations, a few each step, which is slow, and logged at level `debug`. The backward pass saves
/// `a` and the states.
///
/// # Arguments
/// - `a`: `[B, T, N, P, P]`, rows first. Stable where no `A_t` lengthens a state.
/// - `b`: `[B, T, N·P]`, the same dtype.
/// - `sequence`: the initial state `[B, N·P]`, resets `[B, T]`, lengths.
/// - `options`: the direction; there is no choice of routine or recomputation.
///
/// # Returns
/// All states `[B, T, N·P]` and the last `[B, N·P]`.
///
/// Source: Fan, Chi & Rudnicky, *Advancing Regular Language Reasoning in Linear Recurrent Neural Networks* (2024).
///
/// # Errors
/// Shapes, dtypes, devices or lengths that do not fit, a dtype that the device lacks; a routine or a recomputation in
/// `options`. Nothing has been launched then.
pub fn block_diagonal_scan(
    a: Tensor<5>,
    b: Tensor<3>,
    sequence: Sequence,
    options: ScanOptions,
) -> Result<(Tensor<3>, Tensor<2>), Error> {
    let [batch, steps, blocks, size, _] = a.dims();
    let dim = blocks * size;
    if dim == 0 {
        return Err(riverrun_kernels::Error::NoChannels.into());
    }
    if let Some(routine) = options.routine {
        return Err(riverrun_kernels::Error::Routine {
            routine: routine.name(),
            reason: "the block-diagonal recurrence has no routines".into(),
        }
        .into());
    }
    if options.saved_states != SavedStates::All {
        let refusal = "the block-diagonal recurrence saves all states; it cannot recompute them";
        return Err(Error::Unsupported(refusal.into()));
    }
    checks::supported("b", &b.device(), b.dtype())?;
    checks::fits("A", &b, &a, &[batch, steps, blocks, size, size])?;
    checks::shape("b", &[batch, steps, dim], &b.dims())?;
    checks::optional("h0", &b, sequence.state.as_ref(), &[batch, dim])?;
    checks::reset(&b, sequence.reset.as_ref(), [batch, steps])?;
    checks::lengths(sequence.lengths.as_deref(), [batch, steps])?;
    let padded = padding(sequence.lengths.as_deref(), steps, &b.device());
    let (a, b) = match &padded {
        Some(padding) => hold(a, b, padding),
        None => (a, b),
    };
    let dtype = b.dtype();
    let state = State {
        kind: StateKind::BlockDiagonal,
        shape: [batch, dim],
        dtype,
        reverse: options.reverse,
    };
    let (h, last) = handed_over(state, steps, b.clone(), sequence, |sequence| {
        let reset = match &padded {
            Some(padding) => unpadded_reset(sequence.reset, padding),
            None => sequence.reset,
        };
        if let Some(reason) = uncovered(&b, size) {
            tracing::debug!(
                blocks,
                size,
                reason,
                "block-diagonal scan by tensor operations"
            );
            return Ok(composed::scan(a, b, sequence.state, reset, options.reverse));
        }
        let h0 = sequence.state.map(Tensor::into_dispatch);
        let reset = reset.map(|reset| reset.float().cast(dtype).into_dispatch());
        let (h, last) = <Dispatch as BlockDiagonalOps>::block_diagonal(
            a.into_dispatch(),
            b.into_dispatch(),
            Maybe::from_option(h0),
            Maybe::from_option(reset),
            options.reverse,
        );
        Ok((Tensor::from_dispatch(h), Tensor::from_dispatch(last)))
    })?;
    let h = match &padded {
        Some(padding) => fill(h, padding, 0.0),
        None => h,
    };
    Ok((h, last))
}

/// `A = 1` and `b = 0` at the padded steps, which leave the state as it was.
fn hold(a: Tensor<5>, b: Tensor<3>, padding: &Tensor<3, Bool>) -> (Tensor<5>, Tensor<3>) {
    let shape = a.dims();
    let one = Tensor::<2>::eye(shape[3], &a.device()).cast(a.dtype());
    let one = one.reshape([1, 1, 1, shape[3], shape[3]]).expand(shape);
    let mask = padding.clone().unsqueeze_dims::<5>(&[3, 4]).expand(shape);
    (a.mask_where(mask, one), fill(b, padding, 0.0))
}

/// Why the device has no kernel for blocks of this size, if it has none.
#[allow(unused_variables)]
fn uncovered(b: &Tensor<3>, size: usize) -> Option<&'static str> {
    #[cfg(feature = "cube")]
    if crate::device::client(&b.device()).is_some() {
        use riverrun_kernels::block_diagonal::gpu::LARGEST;
        if size > LARGEST {
            return Some("blocks of more channels than a thread keeps in registers");
        }
    }
    None
}
