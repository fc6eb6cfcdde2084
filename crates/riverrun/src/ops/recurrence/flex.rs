//! The CPU, through the slices of Burn's Flex backend.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::Shape;
use burn_flex::FlexTensor;
use riverrun_kernels::recurrence::{Problem, Rows, RowsMut, Shape as ScanShape, cpu};

use super::{GateInputs, RecurrenceOps, ScanGradients, ScanSpec};
use crate::ops::support::Maybe;
use crate::ops::support::flex::{Storage, by_dtype, contiguous, dense, mask, zeros};

/// A view with contiguous channels and positive strides, as [`Rows`] requires; other layouts are copied.
fn readable(tensor: FlexTensor) -> FlexTensor {
    let layout = tensor.layout();
    let strides = layout.strides();
    let last = strides.len() - 1;
    let direct =
        (layout.shape()[last] <= 1 || strides[last] == 1) && strides.iter().all(|&s| s >= 0);
    if direct {
        tensor
    } else {
        tensor.to_contiguous()
    }
}

/// Column block `index` of `groups` in a `[B, T, groups·D]` tensor.
fn rows<E: Storage>(tensor: &FlexTensor, shape: ScanShape, index: usize) -> Rows<'_, E> {
    let layout = tensor.layout();
    let start = layout.start_offset() + index * shape.dim;
    let data = tensor.storage::<E>();
    let strides = layout.strides();
    let data = &data[start.min(data.len())..];
    Rows::strided(data, shape, strides[0] as usize, strides[1] as usize)
        .unwrap_or_else(|error| panic!("{error}"))
}

struct Prepared {
    tensors: Vec<FlexTensor>,
    packed: bool,
}

impl Prepared {
    fn new(inputs: GateInputs<Flex>) -> Self {
        match inputs {
            GateInputs::Separate(a, b) => Self {
                tensors: vec![readable(a), readable(b)],
                packed: false,
            },
            GateInputs::Packed(x) => Self {
                tensors: vec![readable(x)],
                packed: true,
            },
        }
    }

    fn rows<E: Storage>(&self, problem: &Problem) -> Vec<Rows<'_, E>> {
        (0..problem.gate.inputs())
            .map(|i| {
                if self.packed {
                    rows(&self.tensors[0], problem.shape, i)
                } else {
                    rows(&self.tensors[i], problem.shape, 0)
                }
            })
            .collect()
    }
}

fn forward<E: Storage>(
    problem: &Problem,
    inputs: &Prepared,
    h0: Option<FlexTensor>,
    reset: Option<FlexTensor>,
    h: &mut FlexTensor,
) {
    let mask = mask::<E>(&reset);
    let h0 = h0.as_ref().map(contiguous::<E>);
    RowsMut::contiguous(h.storage_mut::<E>(), problem.shape)
        .and_then(|h| cpu::forward(problem, &inputs.rows::<E>(problem), h0, mask.as_deref(), h))
        .unwrap_or_else(|error| panic!("{error}"));
}

#[allow(clippy::too_many_arguments)]
fn backward<E: Storage>(
    problem: &Problem,
    inputs: &Prepared,
    h0: Option<FlexTensor>,
    reset: Option<FlexTensor>,
    h: &FlexTensor,
    d_h: &FlexTensor,
    d_h_last: Option<FlexTensor>,
    d_inputs: &mut [FlexTensor],
    d_h0: &mut FlexTensor,
) {
    let mask = mask::<E>(&reset);
    let shape = problem.shape;
    let views: Result<Vec<RowsMut<'_, E>>, _> = if inputs.packed {
        let x = d_inputs[0].storage_mut::<E>();
        RowsMut::split_packed(x, shape, problem.gate.inputs())
    } else {
        d_inputs
            .iter_mut()
            .map(|d| RowsMut::contiguous(d.storage_mut::<E>(), shape))
            .collect()
    };
    cpu::backward(
        problem,
        &inputs.rows::<E>(problem),
        h0.as_ref().map(contiguous::<E>),
        mask.as_deref(),
        rows(h, shape, 0),
        rows(d_h, shape, 0),
        d_h_last.as_ref().map(contiguous::<E>),
        views.unwrap_or_else(|error| panic!("{error}")),
        Some(d_h0.storage_mut::<E>()),
    )
    .unwrap_or_else(|error| panic!("{error}"));
}

impl RecurrenceOps for Flex {
    fn recurrence_forward(
        inputs: GateInputs<Self>,
        h0: Maybe<Self>,
        reset: Maybe<Self>,
        spec: ScanSpec,
    ) -> FloatTensor<Self> {
        let dtype = inputs.first().dtype();
        let problem = spec.problem(&inputs.first().shape(), inputs.packed());
        let shape = problem.shape;
        let mut h = zeros(Shape::new([shape.batch, shape.steps, shape.dim]), dtype);
        let inputs = Prepared::new(inputs);
        by_dtype!(
            dtype,
            forward(&problem, &inputs, dense(h0), dense(reset), &mut h)
        );
        h
    }

    fn recurrence_backward(
        inputs: GateInputs<Self>,
        h0: Maybe<Self>,
        reset: Maybe<Self>,
        h: FloatTensor<Self>,
        d_h: FloatTensor<Self>,
        d_h_last: Maybe<Self>,
        spec: ScanSpec,
    ) -> ScanGradients<Self> {
        let dtype = inputs.first().dtype();
        let problem = spec.problem(&inputs.first().shape(), inputs.packed());
        let shape = problem.shape;
        let inputs = Prepared::new(inputs);
        let mut d_inputs: Vec<FlexTensor> = inputs
            .tensors
            .iter()
            .map(|x| zeros(x.shape(), dtype))
            .collect();
        let mut d_h0 = zeros(Shape::new([shape.batch, shape.dim]), dtype);
        let (h, d_h) = (readable(h), readable(d_h));
        by_dtype!(
            dtype,
            backward(
                &problem,
                &inputs,
                dense(h0),
                dense(reset),
                &h,
                &d_h,
                dense(d_h_last),
                &mut d_inputs,
                &mut d_h0
            )
        );
        let mut d_inputs = d_inputs.into_iter();
        let mut next = || d_inputs.next().expect("one gradient an input");
        let inputs = if inputs.packed {
            GateInputs::Packed(next())
        } else {
            GateInputs::Separate(next(), next())
        };
        ScanGradients { inputs, h0: d_h0 }
    }
}
