//! CUDA, ROCm, Vulkan, Metal and WebGPU, through CubeCL.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use riverrun_kernels::delta_step::Problem;
use riverrun_kernels::delta_step::gpu::{Buffers, run};

use super::DeltaStepOps;
use crate::ops::support::cube::{dtype, empty_like, into_contiguous, own};

impl DeltaStepOps for CubeBackend {
    fn delta_step(
        mixed: FloatTensor<Self>,
        rates: FloatTensor<Self>,
        gate: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        a_log: FloatTensor<Self>,
        dt_bias: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        inputs: FloatTensor<Self>,
        states: FloatTensor<Self>,
        problem: Problem,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let (inputs, states) = (own(inputs), own(states));
        let dense = |tensor: CubeTensor| into_contiguous(tensor).handle;
        let y = empty_like(&gate, gate.shape());
        let buffers = Buffers {
            mixed: dense(mixed),
            rates: dense(rates),
            gate: dense(gate),
            weight: dense(weight),
            a_log: dense(a_log),
            dt_bias: dense(dt_bias),
            gamma: dense(gamma),
            inputs: inputs.handle.clone(),
            states: states.handle.clone(),
            y: y.handle.clone(),
        };
        run(&y.client, &problem, dtype(&y), &buffers).unwrap_or_else(|error| panic!("{error}"));
        (y, inputs, states)
    }
}
