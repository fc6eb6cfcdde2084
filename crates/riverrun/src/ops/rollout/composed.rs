//! The rollout by tensor operations, for problems that the kernels do not cover: one batched product of all members a stage.

use burn::tensor::activation::{sigmoid, softmax};
use burn::tensor::{Bool, Int, Tensor};
use riverrun_kernels::rollout::{Decode, Problem};

use super::Ensemble;
use crate::Error;
use crate::ops::linear::matmul;

/// `[E, R]`, `E ≥ 1`, see [`Outcome::from_rows`](riverrun_kernels::rollout::Outcome::from_rows).
pub(super) fn rows(
    problem: &Problem,
    ensemble: Ensemble,
    h0: Tensor<2>,
    features: Tensor<1>,
    loss: Tensor<1>,
) -> Tensor<2> {
    let Problem {
        members,
        hidden,
        stochastic,
        steps,
        ..
    } = *problem;
    let device = h0.device();
    // The logit of class i is element ⌊i H / S⌋ of the state.
    let places: Vec<i32> = (0..stochastic)
        .map(|i| (i * hidden / stochastic) as i32)
        .collect();
    let places = Tensor::<1, Int>::from_ints(places.as_slice(), &device);
    let second = |h: Tensor<2>| match problem.decode {
        Decode::Linear => h,
        Decode::LogLoss => softmax(h.select(1, places.clone()), 1),
    };
    let heads = ensemble.heads.transpose();
    let head = heads.clone().narrow(1, 0, 1);
    // The contribution of the constant features, and the weights of the one that changes: [E, 3H].
    let constant: Tensor<2> = {
        let mut mask = vec![1.0_f32; problem.features];
        mask[0] = 0.0;
        let mask = Tensor::<1>::from_floats(mask.as_slice(), &device).cast(features.dtype());
        let f: Tensor<3> = (features.clone() * mask).reshape([1, problem.features, 1]);
        let f = f.repeat_dim(0, members);
        let products: Tensor<2> = matmul(ensemble.w.clone(), f)
            .unwrap_or_else(Error::raise)
            .squeeze_dim(2);
        products + ensemble.bias
    };
    let first: Tensor<2> = ensemble.w.narrow(2, 0, 1).squeeze_dim(2);
    let gates = ensemble.u.clone().narrow(1, 0, 2 * hidden).swap_dims(1, 2);
    let candidate = ensemble.u.narrow(1, 2 * hidden, hidden).swap_dims(1, 2);
    let product = |h: Tensor<2>, u: &Tensor<3>| -> Tensor<2> {
        matmul(h.unsqueeze_dim::<3>(1), u.clone())
            .unwrap_or_else(Error::raise)
            .squeeze_dim(1)
    };
    let zero = Tensor::<2>::zeros([members, 1], (&device, h0.dtype()));
    let mut signal = features.narrow(0, 0, 1).reshape([1, 1]) + zero.clone();
    let mut trajectory = vec![loss.reshape([1, 1]) + zero.clone()];
    let mut norms = Vec::with_capacity(steps);
    let mut entropy = zero;
    let mut h = h0;
    for _ in 0..steps {
        let inputs = constant.clone() + first.clone() * signal;
        let zr = sigmoid(inputs.clone().narrow(1, 0, 2 * hidden) + product(h.clone(), &gates));
        let z = zr.clone().narrow(1, 0, hidden);
        let r = zr.narrow(1, hidden, hidden);
        let c = inputs.narrow(1, 2 * hidden, hidden) + product(r * h.clone(), &candidate);
        h = h.clone() + z * (c.tanh() - h);
        let p = second(h.clone());
        let y = matmul(Tensor::cat(vec![h.clone(), p.clone()], 1), head.clone())
            .unwrap_or_else(Error::raise);
        match problem.decode {
            Decode::Linear => {
                signal = y;
                entropy = entropy + 0.01;
            }
            Decode::LogLoss => {
                signal = y.clamp(-10.0, 10.0).exp().clamp_min(1e-6);
                let least: Tensor<2, Bool> = p.clone().lower_equal_elem(1e-8);
                let terms = p.clone() * p.mask_fill(least.clone(), 1.0).log();
                entropy = entropy - terms.sum_dim(1);
            }
        }
        norms.push((h.clone() * h.clone()).sum_dim(1).sqrt());
        trajectory.push(signal.clone());
    }
    let v = Tensor::cat(vec![h.clone(), second(h)], 1);
    let delta = matmul(v.clone(), heads.narrow(1, 1, 10)).unwrap_or_else(Error::raise);
    let mut all = trajectory;
    all.push(v);
    all.push(entropy);
    all.extend(norms);
    all.push(delta);
    Tensor::cat(all, 1)
}
