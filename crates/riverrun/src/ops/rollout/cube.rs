//! CUDA, ROCm, Vulkan, Metal and WebGPU, through CubeCL.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::Shape;
use burn_cubecl::CubeBackend;
use riverrun_kernels::rollout::gpu::{Buffers, run};

use super::{RolloutOps, problem};
use crate::ops::support::cube::{empty_like, into_contiguous};

impl RolloutOps for CubeBackend {
    fn rollout(
        w: FloatTensor<Self>,
        u: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        heads: FloatTensor<Self>,
        h0: FloatTensor<Self>,
        features: FloatTensor<Self>,
        loss: FloatTensor<Self>,
        steps: usize,
        linear: bool,
    ) -> FloatTensor<Self> {
        let problem = problem(&w.shape(), &heads.shape(), steps, linear);
        let rows = empty_like(&w, Shape::new([problem.members, problem.row()]));
        let handle = |tensor| into_contiguous(tensor).handle;
        let args = Buffers {
            w: handle(w),
            u: handle(u),
            bias: handle(bias),
            heads: handle(heads),
            h0: handle(h0),
            features: handle(features),
            loss: handle(loss),
            rows: rows.handle.clone(),
        };
        run(&rows.client, &problem, &args, None).unwrap_or_else(|error| panic!("{error}"));
        rows
    }
}
