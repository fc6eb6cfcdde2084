//! CUDA, ROCm, Vulkan, Metal and WebGPU, through CubeCL.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn_cubecl::CubeBackend;
use riverrun_kernels::rotary::gpu;

use super::{RotaryOps, Turned, problem};
use crate::ops::support::cube::{dtype, empty_like, into_contiguous};

impl RotaryOps for CubeBackend {
    fn rotary(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        turn: Turned,
    ) -> FloatTensor<Self> {
        let [x, cos, sin] = [x, cos, sin].map(into_contiguous);
        let y = empty_like(&x, x.shape());
        let problem = problem(&x.shape(), &cos.shape(), turn);
        let angles = [&cos.handle, &sin.handle];
        gpu::turn(&x.client, &problem, dtype(&x), &x.handle, angles, &y.handle)
            .unwrap_or_else(|error| panic!("{error}"));
        y
    }
}
