//! CUDA, ROCm, Vulkan, Metal and WebGPU, through CubeCL.

use burn::backend::TensorMetadata;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn_cubecl::CubeBackend;
use riverrun_kernels::draw::gpu::{Buffers, Problem, run};

use super::{DrawOps, DrawSpec};
use crate::ops::support::cube::{dtype, integers, into_contiguous, own};

impl DrawOps for CubeBackend {
    fn draw(
        logits: FloatTensor<Self>,
        uniforms: FloatTensor<Self>,
        tokens: IntTensor<Self>,
        log: IntTensor<Self>,
        counts: IntTensor<Self>,
        position: IntTensor<Self>,
        spec: DrawSpec,
    ) -> (
        IntTensor<Self>,
        IntTensor<Self>,
        IntTensor<Self>,
        IntTensor<Self>,
    ) {
        let (logits, uniforms) = (into_contiguous(logits), into_contiguous(uniforms));
        let (tokens, index) = integers(own(tokens));
        let [log, counts, position] = [log, counts, position].map(|of| integers(own(of)).0);
        let problem = Problem {
            rows: logits.shape()[0],
            symbols: spec.symbols,
            stride: logits.shape()[1],
            slots: log.shape()[0],
            rule: spec.rule,
        };
        let buffers = Buffers {
            logits: logits.handle.clone(),
            uniforms: uniforms.handle,
            index,
            tokens: tokens.handle.clone(),
            log: log.handle.clone(),
            counts: counts.handle.clone(),
            position: position.handle.clone(),
        };
        run(&logits.client, &problem, dtype(&logits), &buffers)
            .unwrap_or_else(|error| panic!("{error}"));
        (tokens, log, counts, position)
    }
}
