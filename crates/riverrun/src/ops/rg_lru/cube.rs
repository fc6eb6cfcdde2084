//! CUDA, ROCm, Vulkan, Metal and WebGPU, through CubeCL.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::Shape;
use burn_cubecl::CubeBackend;
use riverrun_kernels::rg_lru::gpu::{Gradients, Inputs, backward, forward};

use super::{GateGradients, GateInputs, RgLruOps, RgLruProblem};
use crate::ops::support::cube::{dtype, empty_like, handle, into_contiguous};

fn buffers(inputs: GateInputs<CubeBackend>) -> Inputs {
    Inputs {
        p: into_contiguous(inputs.p).handle,
        q: into_contiguous(inputs.q).handle,
        x: into_contiguous(inputs.x).handle,
        bias: handle(inputs.bias),
        rate: into_contiguous(inputs.rate).handle,
        reset: handle(inputs.reset),
    }
}

impl RgLruOps for CubeBackend {
    fn rg_lru_gates(inputs: GateInputs<Self>, problem: RgLruProblem) -> FloatTensor<Self> {
        let (client, dtype) = (inputs.x.client.clone(), dtype(&inputs.x));
        let shape = Shape::new([problem.batch, problem.steps, 2 * problem.dim]);
        let out = empty_like(&inputs.x, shape);
        forward(&client, &problem, dtype, &buffers(inputs), &out.handle)
            .unwrap_or_else(|error| panic!("{error}"));
        out
    }

    fn rg_lru_gates_backward(
        inputs: GateInputs<Self>,
        d: FloatTensor<Self>,
        problem: RgLruProblem,
    ) -> GateGradients<Self> {
        let (client, dtype) = (inputs.x.client.clone(), dtype(&inputs.x));
        let like = |shape: Shape| empty_like(&inputs.x, shape);
        let gradients = GateGradients::<Self> {
            p: like(inputs.x.shape()),
            q: like(inputs.x.shape()),
            x: like(inputs.x.shape()),
            bias: like(Shape::new([2 * problem.dim])),
            rate: like(Shape::new([problem.dim])),
        };
        let outputs = Gradients {
            p: gradients.p.handle.clone(),
            q: gradients.q.handle.clone(),
            x: gradients.x.handle.clone(),
            bias: gradients.bias.handle.clone(),
            rate: gradients.rate.handle.clone(),
        };
        let d = into_contiguous(d).handle;
        backward(&client, &problem, dtype, &buffers(inputs), &d, &outputs)
            .unwrap_or_else(|error| panic!("{error}"));
        gradients
    }
}
