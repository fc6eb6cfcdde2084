//! The CPU.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::Shape;
use burn_flex::FlexTensor;
use riverrun_kernels::rg_lru::cpu::{Gradients, Inputs, backward, forward};

use super::{GateGradients, GateInputs, RgLruOps, RgLruProblem};
use crate::ops::support::flex::{Storage, by_dtype, contiguous, dense, mask, zeros};

/// The inputs, contiguous.
struct Dense {
    p: FlexTensor,
    q: FlexTensor,
    x: FlexTensor,
    bias: Option<FlexTensor>,
    rate: FlexTensor,
    reset: Option<FlexTensor>,
}

impl Dense {
    fn new(inputs: GateInputs<Flex>) -> Self {
        Self {
            p: inputs.p.to_contiguous(),
            q: inputs.q.to_contiguous(),
            x: inputs.x.to_contiguous(),
            bias: dense(inputs.bias),
            rate: inputs.rate.to_contiguous(),
            reset: dense(inputs.reset),
        }
    }

    fn slices<'a, E: Storage>(&'a self, reset: Option<&'a [bool]>) -> Inputs<'a, E> {
        Inputs {
            p: contiguous(&self.p),
            q: contiguous(&self.q),
            x: contiguous(&self.x),
            bias: self.bias.as_ref().map(contiguous),
            rate: contiguous(&self.rate),
            reset,
        }
    }
}

fn run<E: Storage>(problem: &RgLruProblem, inputs: &Dense, out: &mut FlexTensor) {
    let reset = mask::<E>(&inputs.reset);
    let slices = inputs.slices::<E>(reset.as_deref());
    forward(problem, slices, out.storage_mut()).unwrap_or_else(|error| panic!("{error}"));
}

fn run_backward<E: Storage>(
    problem: &RgLruProblem,
    inputs: &Dense,
    d_out: &FlexTensor,
    d: &mut GateGradients<Flex>,
) {
    let reset = mask::<E>(&inputs.reset);
    let gradients = Gradients {
        p: d.p.storage_mut::<E>(),
        q: d.q.storage_mut(),
        x: d.x.storage_mut(),
        bias: d.bias.storage_mut(),
        rate: d.rate.storage_mut(),
    };
    let slices = inputs.slices::<E>(reset.as_deref());
    backward(problem, slices, contiguous(d_out), gradients)
        .unwrap_or_else(|error| panic!("{error}"));
}

impl RgLruOps for Flex {
    fn rg_lru_gates(inputs: GateInputs<Self>, problem: RgLruProblem) -> FloatTensor<Self> {
        let inputs = Dense::new(inputs);
        let shape = Shape::new([problem.batch, problem.steps, 2 * problem.dim]);
        let mut out = zeros(shape, inputs.x.dtype());
        by_dtype!(inputs.x.dtype(), run(&problem, &inputs, &mut out));
        out
    }

    fn rg_lru_gates_backward(
        inputs: GateInputs<Self>,
        d: FloatTensor<Self>,
        problem: RgLruProblem,
    ) -> GateGradients<Self> {
        let (inputs, d) = (Dense::new(inputs), d.to_contiguous());
        let dtype = inputs.x.dtype();
        let like_x = || zeros(inputs.x.shape(), dtype);
        let mut gradients = GateGradients::<Self> {
            p: like_x(),
            q: like_x(),
            x: like_x(),
            bias: zeros(Shape::new([2 * problem.dim]), dtype),
            rate: zeros(Shape::new([problem.dim]), dtype),
        };
        by_dtype!(dtype, run_backward(&problem, &inputs, &d, &mut gradients));
        gradients
    }
}
