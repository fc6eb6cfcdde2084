//! The cells composed of a backend's own operations, in `f32`, for devices without a kernel for them.
//!
//! One product and a few elementwise operations a step. Backward is written out rather than left to differentiation, so that it
//! saves the same few blocks a step as the CPU's kernels and computes the gradients of the weights in one product at the end.

mod steps;
mod value;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::Shape;

use super::{
    CellGradients, CellInputs, CellOps, CellOutputGrads, CellSpec, CellStates, StepInputs,
};
use crate::ops::linear::{Factor, product, weight_gradient};
use crate::ops::support::Maybe;
pub(super) use steps::{backward as steps_backward, forward as steps_forward};

/// `[B, T, N]` as `[B·T, N]`.
pub(super) fn rows<B: Backend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    let shape = tensor.shape();
    B::float_reshape(tensor, Shape::new([shape[0] * shape[1], shape[2]]))
}

/// `[N]` as `[1, N]`.
fn row<B: Backend>(bias: FloatTensor<B>) -> FloatTensor<B> {
    let shape = Shape::new([1, bias.shape()[0]]);
    B::float_reshape(bias, shape)
}

fn step_inputs<B: Backend>(inputs: &CellInputs<B>, xg: FloatTensor<B>) -> StepInputs<B> {
    StepInputs {
        xg,
        u: inputs.u.clone(),
        bias: inputs.bias_hh.clone(),
        h0: inputs.h0.clone(),
        c0: inputs.c0.clone(),
        reset: inputs.reset.clone(),
        lengths: inputs.lengths.clone(),
    }
}

pub(super) fn layer_forward<B: CellOps>(
    inputs: CellInputs<B>,
    spec: CellSpec,
    save: bool,
) -> CellStates<B> {
    let problem = spec.problem::<B>(&inputs.x, &inputs.u);
    let shape = Shape::new([problem.batch, problem.steps, problem.gate_width()]);
    let xg = if problem.outputs() == 0 {
        B::float_zeros(shape, &inputs.x.device(), inputs.x.dtype().into())
    } else {
        let x = Factor::<B>::new(rows::<B>(inputs.x.clone()));
        let w = Factor::transposed(inputs.w.clone());
        let bias = inputs.bias_ih.clone().into_option();
        B::float_reshape(product(x, w, bias), shape)
    };
    let steps = step_inputs(&inputs, xg);
    B::cell_steps_forward(steps, spec, save)
}

pub(super) fn layer_backward<B: CellOps>(
    inputs: CellInputs<B>,
    grads: CellOutputGrads<B>,
    spec: CellSpec,
    want_x: bool,
) -> CellGradients<B> {
    let (device, dtype) = (inputs.x.device(), inputs.x.dtype());
    let problem = spec.problem::<B>(&inputs.x, &inputs.u);
    let shape = Shape::new([problem.batch, problem.steps, problem.gate_width()]);
    // Backward reads the shape alone: one element, seen as many.
    let xg = B::float_zeros(Shape::new([1, 1, 1]), &device, dtype.into());
    let xg = B::float_expand(xg, shape);
    let steps = B::cell_steps_backward(step_inputs(&inputs, xg), grads, spec);
    let d_xg = rows::<B>(steps.xg);
    let with_bias = matches!(inputs.bias_ih, Maybe::Some(_));
    let (x, w, bias_ih) = if problem.outputs() == 0 {
        let zeros = |shape: Shape| B::float_zeros(shape, &device, dtype.into());
        let bias = Shape::new([problem.gate_width()]);
        (
            want_x.then(|| zeros(inputs.x.shape())),
            zeros(inputs.w.shape()),
            with_bias.then(|| zeros(bias)),
        )
    } else {
        let x = want_x.then(|| {
            let (d_xg, w) = (
                Factor::<B>::new(d_xg.clone()),
                Factor::new(inputs.w.clone()),
            );
            B::float_reshape(product(d_xg, w, None), inputs.x.shape())
        });
        let (w, bias) = weight_gradient::<B>(d_xg, rows::<B>(inputs.x.clone()), with_bias);
        (x, w, bias)
    };
    CellGradients {
        x: Maybe::from_option(x),
        w,
        u: steps.u,
        bias_ih: Maybe::from_option(bias_ih),
        bias_hh: inputs.bias_hh.map(|_| steps.bias),
        h0: inputs.h0.map(|_| steps.h0),
        c0: match steps.c0.into_option() {
            Some(d_c0) => inputs.c0.map(|_| d_c0),
            None => Maybe::None,
        },
    }
}
