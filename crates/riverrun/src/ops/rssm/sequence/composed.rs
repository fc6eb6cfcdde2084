//! The backward pass through the steps, composed of the operations of a step.

use std::ops::Range;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Scalar, TensorMetadata, get_device_settings};
use burn::tensor::{Shape, Slice};
use riverrun_kernels::norm::{Kind, Spec};
use riverrun_kernels::rssm::sequence::Problem;

use super::{RssmCuts, RssmSaved, RssmSequenceOps, RssmWeights};
use crate::ops::linear::{Factor, batched, product};
use crate::ops::support::Maybe;

/// Numbers `range` of time `t` of `[B, T, N]`, `[B, ..]`.
fn at<B: Backend>(x: &FloatTensor<B>, t: usize, range: Range<usize>) -> FloatTensor<B> {
    let batch = x.shape()[0];
    let shape = Shape::new([batch, range.len()]);
    let slices = [0..batch, t..t + 1, range].map(Slice::from);
    B::float_reshape(B::float_slice(x.clone(), &slices), shape)
}

/// Time `t` of `[G, B·T, N]`, `[G, B, N]`.
fn block_at<B: Backend>(
    x: &FloatTensor<B>,
    [batch, steps]: [usize; 2],
    t: usize,
) -> FloatTensor<B> {
    let shape = x.shape();
    let (blocks, width) = (shape[0], shape[2]);
    let x = B::float_reshape(x.clone(), Shape::new([blocks, batch, steps, width]));
    let slices = [0..blocks, 0..batch, t..t + 1, 0..width].map(Slice::from);
    B::float_reshape(
        B::float_slice(x, &slices),
        Shape::new([blocks, batch, width]),
    )
}

/// The steps, the last one first, `[.., B, N]` each, along a dimension of time before the last.
fn in_time<B: Backend>(steps: Vec<FloatTensor<B>>) -> FloatTensor<B> {
    let steps = steps.into_iter().rev().map(|step| {
        let mut shape = step.shape().to_vec();
        shape.insert(shape.len() - 1, 1);
        B::float_reshape(step, Shape::from(shape))
    });
    let steps: Vec<FloatTensor<B>> = steps.collect();
    let dim = steps[0].shape().num_dims() - 2;
    B::float_cat(steps, dim)
}

/// The gradient of `x` from that of `silu(normal)`, `normal` the norm of `x`; `d_y` in as many blocks as `x` went into.
fn activate_backward<B: RssmSequenceOps>(
    x: FloatTensor<B>,
    normal: FloatTensor<B>,
    gamma: &FloatTensor<B>,
    epsilon: f64,
    d_y: FloatTensor<B>,
) -> FloatTensor<B> {
    let d_normal = B::activate_blocks_backward(normal, d_y);
    let spec = Spec {
        kind: Kind::Rms,
        epsilon,
    };
    B::norm_backward(x, gamma.clone(), d_normal, Maybe::None, false, spec).x
}

/// `[B, N]` as one block, `[1, B, N]`.
fn one_block<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let shape = x.shape();
    B::float_reshape(x, Shape::new([1, shape[0], shape[1]]))
}

/// `x` times the transpose of a matrix.
fn back<B: RssmSequenceOps>(x: FloatTensor<B>, matrix: &FloatTensor<B>) -> FloatTensor<B> {
    product(
        Factor::<B>::new(x),
        Factor::transposed(matrix.clone()),
        None,
    )
}

pub(super) fn backward<B: RssmSequenceOps>(
    states: FloatTensor<B>,
    d_states: FloatTensor<B>,
    saved: RssmSaved<B>,
    weights: RssmWeights<B>,
    problem: Problem,
) -> RssmCuts<B> {
    let Problem {
        batch,
        steps,
        deter,
        hidden,
        blocks,
        ..
    } = problem;
    let (logits, width) = (problem.logits(), problem.width());
    let (of_s, of_l) = (deter..deter + logits, deter + logits..deter + 2 * logits);
    let [w_blocks, w_gates] =
        [&weights.blocks, &weights.gates].map(|blocks| B::float_swap_dims(blocks.clone(), 1, 2));
    let rows = [0..2 * hidden, 0..deter].map(Slice::from);
    let w_inputs = B::float_slice(weights.inputs.clone(), &rows);
    let mut found: [Vec<FloatTensor<B>>; 6] = Default::default();
    // The gradients of the state after the step, but for those in `d_states`.
    let mut carried: Option<[FloatTensor<B>; 2]> = None;
    let plus = |x: FloatTensor<B>, carried: Option<FloatTensor<B>>| match carried {
        Some(carried) => B::float_add(x, carried),
        None => x,
    };
    let states_at = |t: usize, x: &FloatTensor<B>| at::<B>(x, t, 0..hidden);
    let x_of = |x: &FloatTensor<B>| B::float_reshape(x.clone(), Shape::new([batch, steps, deter]));
    let (x, x_normal) = (x_of(&saved.hidden), x_of(&saved.hidden_normal));
    let [e_1, e_2, e_x, e_p] = problem.epsilons;
    for t in (0..steps).rev() {
        let (carried_d, carried_s) = match carried.take() {
            Some([d, s]) => (Some(d), Some(s)),
            None => (None, None),
        };
        let d_s = plus(at::<B>(&d_states, t, of_s.clone()), carried_s);
        let l = at::<B>(&states, t, of_l.clone());
        let d_l = B::draw_one_hot_backward(l, d_s, problem.classes, f64::from(problem.unimix));
        let d_l = B::float_add(at::<B>(&d_states, t, of_l.clone()), d_l);
        let d_posterior = back::<B>(d_l.clone(), &weights.logits);
        let d_p = activate_backward::<B>(
            states_at(t, &saved.posterior),
            states_at(t, &saved.posterior_normal),
            &weights.posterior_norm,
            e_p,
            one_block::<B>(d_posterior.clone()),
        );
        let d_d = plus(at::<B>(&d_states, t, 0..deter), carried_d);
        let d_d = B::float_add(d_d, back::<B>(d_p, &weights.posterior));
        let before = at::<B>(&saved.before, t, 0..deter);
        let gates = block_at::<B>(&saved.gates, [batch, steps], t);
        let (d_gates, kept_d) = B::gated_step_backward(gates, before, d_d);
        let d_hidden = batched::<B>(d_gates.clone(), w_gates.clone());
        let d_x = activate_backward::<B>(
            at::<B>(&x, t, 0..deter),
            at::<B>(&x_normal, t, 0..deter),
            &weights.hidden_norm,
            e_x,
            d_hidden.clone(),
        );
        let in_blocks = B::float_reshape(d_x.clone(), Shape::new([batch, blocks, width]));
        let of_blocks = batched::<B>(B::float_swap_dims(in_blocks, 0, 1), w_blocks.clone());
        let of_blocks = B::float_reshape(
            B::float_swap_dims(of_blocks, 0, 1),
            Shape::new([batch, deter]),
        );
        let d_inputs = back::<B>(d_x, &w_inputs);
        let half = |range: Range<usize>| {
            B::float_slice(d_inputs.clone(), &[0..batch, range].map(Slice::from))
        };
        let (d_deter, d_stoch) = (half(0..hidden), half(hidden..2 * hidden));
        let d_e = activate_backward::<B>(
            states_at(t, &saved.deter),
            states_at(t, &saved.deter_normal),
            &weights.deter_norm,
            e_1,
            one_block::<B>(d_deter.clone()),
        );
        let d_d = B::float_add(kept_d, of_blocks);
        let d_d = B::float_add(d_d, back::<B>(d_e, &weights.deter));
        let d_e = activate_backward::<B>(
            states_at(t, &saved.stoch),
            states_at(t, &saved.stoch_normal),
            &weights.stoch_norm,
            e_2,
            one_block::<B>(d_stoch.clone()),
        );
        let before = [d_d, back::<B>(d_e, &weights.stoch)];
        carried = Some(match &saved.reset {
            Maybe::Some(reset) => {
                // What the step got from before it counts unless it starts again.
                let slices = [0..batch, t..t + 1].map(Slice::from);
                let reset = B::float_slice(reset.clone(), &slices);
                let settings = get_device_settings::<B>(&reset.device());
                let mask = B::float_not_equal_elem(reset, Scalar::Float(0.0), settings.bool_dtype);
                before.map(|d| {
                    let mask = B::bool_expand(mask.clone(), d.shape());
                    B::float_mask_fill(d, mask, Scalar::Float(0.0))
                })
            }
            Maybe::None => before,
        });
        let all = [d_deter, d_stoch, d_hidden, d_gates, d_posterior, d_l];
        for (found, step) in found.iter_mut().zip(all) {
            found.push(step);
        }
    }
    let [d0, s0] = carried.expect("a step");
    let [deter, stoch, hidden, gates, posterior, logits] = found.map(in_time::<B>);
    let flat = |x: FloatTensor<B>| {
        let shape = x.shape();
        B::float_reshape(x, Shape::new([blocks, batch * steps, shape[3]]))
    };
    RssmCuts {
        deter,
        stoch,
        hidden: flat(hidden),
        gates: flat(gates),
        posterior,
        logits,
        d0,
        s0,
    }
}
