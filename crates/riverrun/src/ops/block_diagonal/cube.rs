//! CUDA, ROCm, Vulkan, Metal and WebGPU, through CubeCL.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::Shape;
use burn_cubecl::CubeBackend;
use riverrun_kernels::block_diagonal::gpu;

use super::backend::problem;
use super::{BlockDiagonalOps, BlockGradients};
use crate::ops::support::Maybe;
use crate::ops::support::cube::{dtype, empty_like, handle, into_contiguous};

impl BlockDiagonalOps for CubeBackend {
    fn block_diagonal_forward(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        h0: Maybe<Self>,
        reset: Maybe<Self>,
        reverse: bool,
    ) -> FloatTensor<Self> {
        let problem = problem(&a.shape(), reverse);
        let h = empty_like(&b, b.shape());
        let (client, dtype) = (b.client.clone(), dtype(&b));
        if problem.shape.elements() > 0 {
            let args = gpu::Forward {
                a: into_contiguous(a).handle,
                b: into_contiguous(b).handle,
                h0: handle(h0),
                reset: handle(reset),
                h: h.handle.clone(),
            };
            gpu::forward(&client, &problem, dtype, &args).unwrap_or_else(|error| panic!("{error}"));
        }
        h
    }

    fn block_diagonal_backward(
        a: FloatTensor<Self>,
        h0: Maybe<Self>,
        reset: Maybe<Self>,
        h: FloatTensor<Self>,
        d_h: FloatTensor<Self>,
        d_h_last: Maybe<Self>,
        reverse: bool,
    ) -> BlockGradients<Self> {
        let problem = problem(&a.shape(), reverse);
        let state = Shape::new([problem.shape.batch, problem.shape.dim()]);
        let d = BlockGradients::<Self> {
            a: empty_like(&a, a.shape()),
            b: empty_like(&a, h.shape()),
            h0: empty_like(&a, state),
        };
        let (client, dtype) = (a.client.clone(), dtype(&a));
        if problem.shape.elements() > 0 {
            let args = gpu::Backward {
                a: into_contiguous(a).handle,
                h0: handle(h0),
                reset: handle(reset),
                h: into_contiguous(h).handle,
                d_h: into_contiguous(d_h).handle,
                d_h_last: handle(d_h_last),
                d_a: d.a.handle.clone(),
                d_b: d.b.handle.clone(),
                d_h0: d.h0.handle.clone(),
            };
            gpu::backward(&client, &problem, dtype, &args)
                .unwrap_or_else(|error| panic!("{error}"));
        }
        d
    }
}
