//! CUDA, ROCm, Vulkan, Metal and WebGPU, through CubeCL.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::Shape as Dims;
use burn_cubecl::CubeBackend;
use riverrun_kernels::short_convolution::gpu::{Backward, Forward, backward, forward};

use super::{ConvolutionGradients, ShortConvolutionOps, sizes, state_dims};
use crate::ops::support::Maybe;
use crate::ops::support::cube::{dtype, empty_like, handle, into_contiguous};

impl ShortConvolutionOps for CubeBackend {
    fn short_convolution(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Maybe<Self>,
        state: Maybe<Self>,
        reset: Maybe<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (x, weight) = (into_contiguous(x), into_contiguous(weight));
        let y = empty_like(&x, x.shape());
        let last = empty_like(&x, state_dims(&x.shape(), &weight.shape()));
        let args = Forward {
            x: x.handle.clone(),
            weight: weight.handle.clone(),
            bias: handle(bias),
            state: handle(state),
            reset: handle(reset),
            y: y.handle.clone(),
            last: last.handle.clone(),
        };
        let shape = sizes(&x.shape(), &weight.shape());
        forward(&x.client, shape, dtype(&x), &args).unwrap_or_else(|error| panic!("{error}"));
        (y, last)
    }

    fn short_convolution_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        state: Maybe<Self>,
        reset: Maybe<Self>,
        d_y: FloatTensor<Self>,
        d_last: Maybe<Self>,
    ) -> ConvolutionGradients<Self> {
        let (x, weight) = (into_contiguous(x), into_contiguous(weight));
        let d = ConvolutionGradients::<Self> {
            x: empty_like(&x, x.shape()),
            weight: empty_like(&x, weight.shape()),
            bias: empty_like(&x, Dims::new([x.shape()[2]])),
            state: empty_like(&x, state_dims(&x.shape(), &weight.shape())),
        };
        let args = Backward {
            x: x.handle.clone(),
            weight: weight.handle.clone(),
            state: handle(state),
            reset: handle(reset),
            d_y: into_contiguous(d_y).handle,
            d_last: handle(d_last),
            d_x: d.x.handle.clone(),
            d_weight: d.weight.handle.clone(),
            d_bias: d.bias.handle.clone(),
            d_state: d.state.handle.clone(),
        };
        let shape = sizes(&x.shape(), &weight.shape());
        backward(&x.client, shape, dtype(&x), &args).unwrap_or_else(|error| panic!("{error}"));
        d
    }
}
