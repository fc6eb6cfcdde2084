//! The block-diagonal recurrence out of tensor operations.

use burn::tensor::Tensor;

use super::Scan;
use super::scan::check;
use crate::Error;

/// `h_t = A_t h_{t-1} + b_t`, `A_t` block-diagonal: `N` blocks of `P` channels, `D = N·P`.
///
/// One product of small matrices a step, each on every backend and differentiable: right everywhere, fast nowhere. The
/// kernels for the CPU are in [`riverrun_kernels::block_diagonal`].
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
/// Shapes, dtypes or devices that do not fit; a routine forced in `scan`, for there is none to choose.
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
    check("A", &b, &a, &[batch, steps, blocks, size, size])?;
    if b.dims() != [batch, steps, dim] {
        return Err(Error::Shape {
            what: "b",
            expected: vec![batch, steps, dim],
            found: b.dims().to_vec(),
        });
    }
    if let Some(h0) = &scan.initial {
        check("h0", &b, h0, &[batch, dim])?;
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
    let zeros = || Tensor::zeros([batch, dim], (&b.device(), b.dtype()));
    let mut state: Tensor<2> = scan.initial.unwrap_or_else(zeros);
    if steps == 0 {
        return Ok((b, state));
    }
    let mut states = Vec::with_capacity(steps);
    for s in 0..steps {
        let t = if scan.reverse { steps - 1 - s } else { s };
        if let Some(reset) = &scan.reset {
            let mask = reset.clone().narrow(1, t, 1).expand([batch, dim]);
            state = state.mask_fill(mask, 0.0);
        }
        let a: Tensor<4> = a.clone().narrow(1, t, 1).squeeze_dim(1);
        let b: Tensor<2> = b.clone().narrow(1, t, 1).squeeze_dim(1);
        let product = a.matmul(state.reshape([batch, blocks, size, 1]));
        state = product.reshape([batch, dim]) + b;
        states.push(state.clone().unsqueeze_dim::<3>(1));
    }
    if scan.reverse {
        states.reverse();
    }
    Ok((Tensor::cat(states, 1), state))
}
