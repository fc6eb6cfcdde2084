//! The block-diagonal recurrence on tensors.

mod autodiff;
mod backend;
mod composed;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;

pub use backend::{BlockDiagonalOps, BlockGradients};

use burn::backend::Dispatch;
use burn::tensor::Tensor;

use super::recurrence::{Checkpoints, Scan};
use super::support::Maybe;
use super::support::checks::fits;
use crate::Error;

/// `h_t = A_t h_{t-1} + b_t`, `A_t` block-diagonal: `N` blocks of `P` channels, `D = N·P`.
///
/// Kernels on the CPU, and on GPUs for blocks of up to 8 channels in f32, f16 and bf16: see
/// [`riverrun_kernels::block_diagonal`]. What they do not cover is made of tensor operations, one product a step, which is
/// right and slow; that is logged at the level `debug`. The backward pass keeps `a` and the states.
///
/// # Arguments
/// - `a`: `[B, T, N, P, P]`, rows first. Stable where no `A_t` lengthens a state.
/// - `b`: `[B, T, N·P]`, the same dtype.
/// - `scan`: initial state `[B, N·P]`, resets `[B, T]`, direction.
///
/// # Returns
/// All states `[B, T, N·P]` and the last `[B, N·P]`.
///
/// # Errors
/// Shapes, dtypes or devices that do not fit; a routine or checkpoints in `scan`, for there are none to choose.
///
/// Source: Fan, Chi & Rudnicky, *Advancing Regular Language Reasoning in Linear Recurrent Neural Networks* (2024).
pub fn block_diagonal_scan(
    a: Tensor<5>,
    b: Tensor<3>,
    scan: Scan,
) -> Result<(Tensor<3>, Tensor<2>), Error> {
    let [batch, steps, blocks, size, _] = a.dims();
    let dim = blocks * size;
    if dim == 0 {
        return Err(riverrun_kernels::Error::NoChannels.into());
    }
    if let Some(routine) = scan.routine {
        return Err(riverrun_kernels::Error::Routine {
            routine: routine.name(),
            reason: "the block-diagonal recurrence has no routines".into(),
        }
        .into());
    }
    if scan.checkpoints != Checkpoints::All {
        let refusal = "the block-diagonal recurrence keeps all states; it has no checkpoints";
        return Err(Error::Unsupported(refusal.into()));
    }
    fits("A", &b, &a, &[batch, steps, blocks, size, size])?;
    if b.dims() != [batch, steps, dim] {
        return Err(Error::Shape {
            what: "b",
            expected: vec![batch, steps, dim],
            found: b.dims().to_vec(),
        });
    }
    if let Some(h0) = &scan.initial {
        fits("h0", &b, h0, &[batch, dim])?;
    }
    if let Some(reset) = &scan.reset
        && reset.dims() != [batch, steps]
    {
        return Err(Error::Shape {
            what: "reset",
            expected: vec![batch, steps],
            found: reset.dims().to_vec(),
        });
    }
    if let Some(reason) = uncovered(&b, size) {
        tracing::debug!(
            blocks,
            size,
            reason,
            "block-diagonal scan out of tensor operations"
        );
        return Ok(composed::scan(a, b, scan));
    }
    let dtype = b.dtype();
    let h0 = scan.initial.map(Tensor::into_dispatch);
    let reset = scan
        .reset
        .map(|reset| reset.float().cast(dtype).into_dispatch());
    let (h, last) = <Dispatch as BlockDiagonalOps>::block_diagonal(
        a.into_dispatch(),
        b.into_dispatch(),
        Maybe::from_option(h0),
        Maybe::from_option(reset),
        scan.reverse,
    );
    Ok((Tensor::from_dispatch(h), Tensor::from_dispatch(last)))
}

/// Why the kernels do not do it on this device, if they do not.
#[allow(unused_variables)]
fn uncovered(b: &Tensor<3>, size: usize) -> Option<&'static str> {
    #[cfg(feature = "cube")]
    if crate::device::client(&b.device()).is_some() {
        use burn::tensor::DType;
        use riverrun_kernels::block_diagonal::gpu::LARGEST;
        if size > LARGEST {
            return Some("blocks of more channels than a unit keeps in registers");
        }
        let known = [DType::F32, DType::Flex32, DType::F16, DType::BF16];
        if !known.contains(&b.dtype()) {
            return Some("a storage type that the GPU kernels do not know");
        }
    }
    None
}
