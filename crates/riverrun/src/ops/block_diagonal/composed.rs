//! Out of tensor operations: one product of small matrices a step, on every backend and differentiable.

use burn::tensor::Tensor;

use crate::ops::recurrence::Scan;

/// As [`block_diagonal_scan`](super::block_diagonal_scan), which has checked the arguments.
pub(super) fn scan(a: Tensor<5>, b: Tensor<3>, scan: Scan) -> (Tensor<3>, Tensor<2>) {
    let [batch, steps, blocks, size, _] = a.dims();
    let dim = blocks * size;
    let zeros = || Tensor::zeros([batch, dim], (&b.device(), b.dtype()));
    let mut state: Tensor<2> = scan.initial.unwrap_or_else(zeros);
    if steps == 0 {
        return (b, state);
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
    (Tensor::cat(states, 1), state)
}
