//! CUDA, ROCm, Vulkan, Metal and WebGPU, through CubeCL.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use riverrun_kernels::norm::gpu::{Backward, Forward, backward, forward};

use super::{NormGradients, NormOps, NormSpec};
use crate::ops::support::Maybe;
use crate::ops::support::cube::{dtype, empty_like, handle, into_contiguous};

/// Rows and channels.
fn rows(x: &CubeTensor, gamma: &CubeTensor) -> [usize; 2] {
    let dim = gamma.shape()[0];
    [x.shape().num_elements() / dim.max(1), dim]
}

fn run(
    spec: &NormSpec,
    x: CubeTensor,
    residual: Option<CubeTensor>,
    gamma: CubeTensor,
    beta: Maybe<CubeBackend>,
) -> (CubeTensor, Option<CubeTensor>) {
    let x = into_contiguous(x);
    let y = empty_like(&x, x.shape());
    let sum = residual.as_ref().map(|_| empty_like(&x, x.shape()));
    let args = Forward {
        x: x.handle.clone(),
        residual: residual
            .map(|residual| into_contiguous(residual).handle)
            .zip(sum.as_ref().map(|sum| sum.handle.clone())),
        gamma: into_contiguous(gamma.clone()).handle,
        beta: handle(beta),
        y: y.handle.clone(),
    };
    let shape = rows(&x, &gamma);
    forward(&x.client, spec, dtype(&x), shape, &args, None)
        .unwrap_or_else(|error| panic!("{error}"));
    (y, sum)
}

impl NormOps for CubeBackend {
    fn norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: Maybe<Self>,
        spec: NormSpec,
    ) -> FloatTensor<Self> {
        run(&spec, x, None, gamma, beta).0
    }

    fn add_norm(
        x: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: Maybe<Self>,
        spec: NormSpec,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (y, sum) = run(&spec, x, Some(residual), gamma, beta);
        (y, sum.expect("there is a residual"))
    }

    fn norm_backward(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        d_sum: Maybe<Self>,
        offset: bool,
        spec: NormSpec,
    ) -> NormGradients<Self> {
        let (x, gamma) = (into_contiguous(x), into_contiguous(gamma));
        let d_x = empty_like(&x, x.shape());
        let d_gamma = empty_like(&x, gamma.shape());
        let d_beta = offset.then(|| empty_like(&x, gamma.shape()));
        let args = Backward {
            x: x.handle.clone(),
            gamma: gamma.handle.clone(),
            d_y: into_contiguous(d_y).handle,
            d_sum: handle(d_sum),
            d_x: d_x.handle.clone(),
            d_gamma: d_gamma.handle.clone(),
            d_beta: d_beta.as_ref().map(|d| d.handle.clone()),
        };
        let shape = rows(&x, &gamma);
        backward(&x.client, &spec, dtype(&x), shape, &args, None)
            .unwrap_or_else(|error| panic!("{error}"));
        NormGradients {
            x: d_x,
            gamma: d_gamma,
            beta: Maybe::from_option(d_beta),
        }
    }
}
