//! CUDA, ROCm, Vulkan, Metal and WebGPU, through CubeCL.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::Shape;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use riverrun_kernels::recurrence::gpu::{self, Inputs, Strided};

use super::{GateInputs, RecurrenceOps, ScanGradients, ScanSpec};
use crate::ops::support::Maybe;
use crate::ops::support::cube::{dtype, empty_like, handle, into_contiguous};

/// The tensor as a view with contiguous channels; other layouts are copied.
fn view(tensor: CubeTensor) -> Strided {
    let channels_last = tensor.meta.shape()[2] <= 1 || tensor.meta.strides()[2] == 1;
    let tensor = if channels_last {
        tensor
    } else {
        into_contiguous(tensor)
    };
    let strides = tensor.meta.strides();
    Strided {
        len: (tensor.handle.size_in_used() as usize) / tensor.dtype.size(),
        offset: 0,
        batch_stride: strides[0],
        step_stride: strides[1],
        handle: tensor.handle,
    }
}

fn inputs(inputs: GateInputs<CubeBackend>) -> Inputs {
    match inputs {
        GateInputs::Separate(a, b) => Inputs::Separate(vec![view(a), view(b)]),
        GateInputs::Packed(x) => Inputs::Packed(view(x)),
    }
}

impl RecurrenceOps for CubeBackend {
    fn recurrence_forward(
        gate: GateInputs<Self>,
        h0: Maybe<Self>,
        reset: Maybe<Self>,
        spec: ScanSpec,
    ) -> FloatTensor<Self> {
        let first = gate.first().clone();
        let problem = spec.problem(&first.shape(), gate.packed());
        let shape = problem.shape;
        let h = empty_like(&first, Shape::new([shape.batch, shape.steps, shape.dim]));
        if shape.elements() > 0 {
            let args = gpu::Forward {
                inputs: inputs(gate),
                h0: handle(h0),
                reset: handle(reset),
                h: h.handle.clone(),
            };
            gpu::forward(
                &first.client,
                &problem,
                dtype(&first),
                &args,
                spec.routine,
                None,
            )
            .unwrap_or_else(|error| panic!("{error}"));
        }
        h
    }

    fn recurrence_backward(
        gate: GateInputs<Self>,
        h0: Maybe<Self>,
        reset: Maybe<Self>,
        h: FloatTensor<Self>,
        d_h: FloatTensor<Self>,
        d_h_last: Maybe<Self>,
        spec: ScanSpec,
    ) -> ScanGradients<Self> {
        let first = gate.first().clone();
        let problem = spec.problem(&first.shape(), gate.packed());
        let shape = problem.shape;
        let like = |tensor: &CubeTensor| empty_like(&first, tensor.shape());
        let d_inputs: GateInputs<Self> = match &gate {
            GateInputs::Separate(a, b) => GateInputs::Separate(like(a), like(b)),
            GateInputs::Packed(x) => GateInputs::Packed(like(x)),
        };
        let d_h0 = empty_like(&first, Shape::new([shape.batch, shape.dim]));
        if shape.elements() > 0 {
            let args = gpu::Backward {
                inputs: inputs(gate),
                h0: handle(h0),
                reset: handle(reset),
                h: into_contiguous(h).handle,
                d_h: into_contiguous(d_h).handle,
                d_h_last: handle(d_h_last),
                d_inputs: match &d_inputs {
                    GateInputs::Separate(a, b) => vec![a.handle.clone(), b.handle.clone()],
                    GateInputs::Packed(x) => vec![x.handle.clone()],
                },
                d_h0: d_h0.handle.clone(),
            };
            gpu::backward(
                &first.client,
                &problem,
                dtype(&first),
                &args,
                spec.routine,
                None,
            )
            .unwrap_or_else(|error| panic!("{error}"));
        }
        ScanGradients {
            inputs: d_inputs,
            h0: d_h0,
        }
    }
}
