//! The recurrence by tensor operations, on every backend and differentiable.

use burn::tensor::{Bool, Tensor};

/// See [`block_diagonal_scan`](super::block_diagonal_scan), which has checked the arguments.
///
/// A product of a matrix and a vector is a multiplication and a sum here: sums are in full precision on every device, where a
/// matmul may round `f32` to TF32.
pub(super) fn scan(
    a: Tensor<5>,
    b: Tensor<3>,
    initial: Option<Tensor<2>>,
    reset: Option<Tensor<2, Bool>>,
    reverse: bool,
) -> (Tensor<3>, Tensor<2>) {
    let [batch, steps, blocks, size, _] = a.dims();
    let dim = blocks * size;
    let zeros = || Tensor::zeros([batch, dim], (&b.device(), b.dtype()));
    let mut state: Tensor<2> = initial.unwrap_or_else(zeros);
    if batch * steps == 0 {
        return (b, state);
    }
    let mut states = Vec::with_capacity(steps);
    for s in 0..steps {
        let t = if reverse { steps - 1 - s } else { s };
        if let Some(reset) = &reset {
            let mask = reset.clone().narrow(1, t, 1).expand([batch, dim]);
            state = state.mask_fill(mask, 0.0);
        }
        let a: Tensor<4> = a.clone().narrow(1, t, 1).squeeze_dim(1);
        let b: Tensor<2> = b.clone().narrow(1, t, 1).squeeze_dim(1);
        let product = (a * state.reshape([batch, blocks, 1, size])).sum_dim(3);
        state = product.reshape([batch, dim]) + b;
        states.push(state.clone().unsqueeze_dim::<3>(1));
    }
    if reverse {
        states.reverse();
    }
    (Tensor::cat(states, 1), state)
}
