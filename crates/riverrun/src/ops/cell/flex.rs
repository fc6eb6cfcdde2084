//! The CPU: the layer in one call each way, input product included.

use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{DType, Shape};
use burn_flex::FlexTensor;
use riverrun_kernels::Element;
use riverrun_kernels::cell::cpu::{self, Routine};
use riverrun_kernels::cell::{
    Cell, InputGrads, Inputs, Layer, LayerGrads, OutputGrads, Outputs, Problem,
};

use super::{CellGradients, CellInputs, CellOps, CellOutputGrads, CellSpec, CellStates};
use crate::ops::support::Maybe;
use crate::ops::support::flex::{Storage, by_dtype, contiguous, dense, mask, zeros};

/// The inputs, each contiguous.
struct Dense {
    x: FlexTensor,
    w: FlexTensor,
    u: FlexTensor,
    bias_ih: Option<FlexTensor>,
    bias_hh: Option<FlexTensor>,
    h0: Option<FlexTensor>,
    c0: Option<FlexTensor>,
    reset: Option<FlexTensor>,
    lengths: Option<Vec<u32>>,
}

impl Dense {
    fn new(inputs: CellInputs<Flex>) -> Self {
        Self {
            x: inputs.x.to_contiguous(),
            w: inputs.w.to_contiguous(),
            u: inputs.u.to_contiguous(),
            bias_ih: dense(inputs.bias_ih),
            bias_hh: dense(inputs.bias_hh),
            h0: dense(inputs.h0),
            c0: dense(inputs.c0),
            reset: dense(inputs.reset),
            lengths: inputs.lengths.into_option().map(|lengths| {
                let lengths = lengths.to_contiguous();
                let lengths = lengths.as_slice::<i32>().expect("lengths are i32");
                lengths.iter().map(|&length| length as u32).collect()
            }),
        }
    }

    fn layer<E: Storage>(&self) -> Layer<'_, E> {
        Layer {
            x: contiguous(&self.x),
            width: self.x.shape()[2],
            w: contiguous(&self.w),
            bias: self.bias_ih.as_ref().map(contiguous),
        }
    }

    fn cell<'a, E: Storage>(&'a self, reset: &'a Option<Vec<bool>>) -> Inputs<'a, E> {
        Inputs {
            xg: &[],
            u: contiguous(&self.u),
            bias: self.bias_hh.as_ref().map(contiguous),
            h0: self.h0.as_ref().map(contiguous),
            c0: self.c0.as_ref().map(contiguous),
            reset: reset.as_deref(),
            lengths: self.lengths.as_deref(),
        }
    }
}

/// The dtype of the arithmetic and of the saved blocks.
fn arithmetic(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

/// Output buffers of the forward pass.
struct Written {
    h: FlexTensor,
    h_last: FlexTensor,
    c_last: Option<FlexTensor>,
    saved: Option<FlexTensor>,
}

fn forward<E: Storage>(problem: &Problem, inputs: &Dense, into: &mut Written)
where
    <E as Element>::Acc: Storage,
{
    let reset = mask::<E>(&inputs.reset);
    let outputs = Outputs {
        h: into.h.storage_mut::<E>(),
        h_last: into.h_last.storage_mut::<E>(),
        c_last: into.c_last.as_mut().map(FlexTensor::storage_mut::<E>),
        saved: into
            .saved
            .as_mut()
            .map(FlexTensor::storage_mut::<<E as Element>::Acc>),
    };
    let (layer, cell) = (inputs.layer::<E>(), inputs.cell::<E>(&reset));
    cpu::forward_layer(problem, &layer, &cell, outputs, Routine::default())
        .unwrap_or_else(|error| panic!("{error}"));
}

/// Operands of the backward pass besides the inputs.
struct Operands {
    h: FlexTensor,
    saved: Option<FlexTensor>,
    d_h: FlexTensor,
    d_h_last: Option<FlexTensor>,
    d_c_last: Option<FlexTensor>,
}

/// Output buffers of the backward pass.
struct Gradients {
    x: Option<FlexTensor>,
    w: FlexTensor,
    u: FlexTensor,
    bias_ih: Option<FlexTensor>,
    bias_hh: Option<FlexTensor>,
    h0: Option<FlexTensor>,
    c0: Option<FlexTensor>,
}

fn backward<E: Storage>(
    problem: &Problem,
    inputs: &Dense,
    operands: &Operands,
    into: &mut Gradients,
) where
    <E as Element>::Acc: Storage,
{
    let reset = mask::<E>(&inputs.reset);
    let grads = OutputGrads {
        d_h: Some(contiguous::<E>(&operands.d_h)),
        d_h_last: operands.d_h_last.as_ref().map(contiguous),
        d_c_last: operands.d_c_last.as_ref().map(contiguous),
    };
    let of_cell = InputGrads {
        d_xg: &mut [],
        d_u: Some(into.u.storage_mut::<E>()),
        d_bias: into.bias_hh.as_mut().map(FlexTensor::storage_mut::<E>),
        d_h0: into.h0.as_mut().map(FlexTensor::storage_mut::<E>),
        d_c0: into.c0.as_mut().map(FlexTensor::storage_mut::<E>),
    };
    let of_layer = LayerGrads {
        d_x: into.x.as_mut().map(FlexTensor::storage_mut::<E>),
        d_w: Some(into.w.storage_mut::<E>()),
        d_bias: into.bias_ih.as_mut().map(FlexTensor::storage_mut::<E>),
    };
    let saved = operands.saved.as_ref();
    cpu::backward_layer(
        problem,
        &inputs.layer::<E>(),
        &inputs.cell::<E>(&reset),
        contiguous(&operands.h),
        saved.map_or(&[], contiguous::<<E as Element>::Acc>),
        &grads,
        of_cell,
        of_layer,
        Routine::default(),
    )
    .unwrap_or_else(|error| panic!("{error}"));
}

impl CellOps for Flex {
    fn cell_layer_forward(
        inputs: CellInputs<Self>,
        spec: CellSpec,
        save: bool,
    ) -> CellStates<Self> {
        let dtype = inputs.x.dtype();
        let problem = spec.problem::<Self>(&inputs.x, &inputs.u);
        let (batch, steps, hidden) = (problem.batch, problem.steps, problem.hidden);
        let state = || zeros(Shape::new([batch, hidden]), dtype);
        let blocks = problem.saved_blocks();
        let mut written = Written {
            h: zeros(Shape::new([batch, steps, hidden]), dtype),
            h_last: state(),
            c_last: (spec.cell == Cell::Lstm).then(state),
            saved: (save && blocks > 0).then(|| {
                let shape = Shape::new([batch, steps, blocks * hidden]);
                zeros(shape, arithmetic(dtype))
            }),
        };
        let inputs = Dense::new(inputs);
        by_dtype!(dtype, forward(&problem, &inputs, &mut written));
        CellStates {
            h: written.h,
            h_last: written.h_last,
            c_last: Maybe::from_option(written.c_last),
            saved: Maybe::from_option(written.saved),
        }
    }

    fn cell_layer_backward(
        inputs: CellInputs<Self>,
        grads: CellOutputGrads<Self>,
        spec: CellSpec,
        want_x: bool,
    ) -> CellGradients<Self> {
        let dtype = inputs.x.dtype();
        let problem = spec.problem::<Self>(&inputs.x, &inputs.u);
        let inputs = Dense::new(inputs);
        let operands = Operands {
            h: grads.h.to_contiguous(),
            saved: dense(grads.saved),
            d_h: grads.d_h.to_contiguous(),
            d_h_last: dense(grads.d_h_last),
            d_c_last: dense(grads.d_c_last),
        };
        let like = |tensor: &FlexTensor| zeros(tensor.shape(), dtype);
        let mut into = Gradients {
            x: want_x.then(|| like(&inputs.x)),
            w: like(&inputs.w),
            u: like(&inputs.u),
            bias_ih: inputs.bias_ih.as_ref().map(like),
            bias_hh: inputs.bias_hh.as_ref().map(like),
            h0: inputs.h0.as_ref().map(like),
            c0: inputs.c0.as_ref().map(like),
        };
        by_dtype!(dtype, backward(&problem, &inputs, &operands, &mut into));
        CellGradients {
            x: Maybe::from_option(into.x),
            w: into.w,
            u: into.u,
            bias_ih: Maybe::from_option(into.bias_ih),
            bias_hh: Maybe::from_option(into.bias_hh),
            h0: Maybe::from_option(into.h0),
            c0: Maybe::from_option(into.c0),
        }
    }
}
