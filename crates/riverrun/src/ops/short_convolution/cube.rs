//! CUDA, ROCm, Vulkan, Metal and WebGPU, through CubeCL.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::Shape as Dims;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use riverrun_kernels::short_convolution::gpu::{Backward, Forward, backward, forward};

use super::{
    ConvolutionGradients, ConvolutionParts, ShortConvolutionOps, part_dims, sizes, state_dims,
};
use crate::ops::support::Maybe;
use crate::ops::support::cube::{dtype, empty_like, handle, into_contiguous};

/// The inputs of both passes.
struct Inputs {
    x: CubeTensor,
    weight: CubeTensor,
    bias: Maybe<CubeBackend>,
    state: Maybe<CubeBackend>,
    reset: Maybe<CubeBackend>,
    silu: bool,
}

impl Inputs {
    /// The parts of `y` with these channels, and the state after the last step.
    fn run(self, widths: &[usize]) -> (Vec<CubeTensor>, CubeTensor) {
        let (x, weight) = (into_contiguous(self.x), into_contiguous(self.weight));
        let part = |width: &usize| empty_like(&x, part_dims(&x.shape(), *width));
        let y: Vec<CubeTensor> = widths.iter().map(part).collect();
        let last = empty_like(&x, state_dims(&x.shape(), &weight.shape()));
        let args = Forward {
            x: x.handle.clone(),
            weight: weight.handle.clone(),
            bias: handle(self.bias),
            state: handle(self.state),
            reset: handle(self.reset),
            silu: self.silu,
            y: y.iter().map(|y| (y.shape()[2], y.handle.clone())).collect(),
            last: last.handle.clone(),
        };
        let shape = sizes(&x.shape(), &weight.shape());
        forward(&x.client, shape, dtype(&x), &args).unwrap_or_else(|error| panic!("{error}"));
        (y, last)
    }

    fn run_backward(
        self,
        d_y: Vec<CubeTensor>,
        d_last: Maybe<CubeBackend>,
    ) -> ConvolutionGradients<CubeBackend> {
        let (x, weight) = (into_contiguous(self.x), into_contiguous(self.weight));
        let d = ConvolutionGradients::<CubeBackend> {
            x: empty_like(&x, x.shape()),
            weight: empty_like(&x, weight.shape()),
            bias: empty_like(&x, Dims::new([x.shape()[2]])),
            state: empty_like(&x, state_dims(&x.shape(), &weight.shape())),
        };
        let d_y = d_y.into_iter().map(into_contiguous);
        let args = Backward {
            x: x.handle.clone(),
            weight: weight.handle.clone(),
            bias: handle(self.bias),
            state: handle(self.state),
            reset: handle(self.reset),
            silu: self.silu,
            d_y: d_y.map(|d| (d.shape()[2], d.handle)).collect(),
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

impl ShortConvolutionOps for CubeBackend {
    fn short_convolution(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Maybe<Self>,
        state: Maybe<Self>,
        reset: Maybe<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let widths = [x.shape()[2]];
        let inputs = Inputs {
            x,
            weight,
            bias,
            state,
            reset,
            silu: false,
        };
        let (mut y, last) = inputs.run(&widths);
        (y.remove(0), last)
    }

    fn short_convolution_silu(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Maybe<Self>,
        state: Maybe<Self>,
        reset: Maybe<Self>,
        widths: [usize; 3],
    ) -> ConvolutionParts<Self> {
        let inputs = Inputs {
            x,
            weight,
            bias,
            state,
            reset,
            silu: true,
        };
        let (y, last) = inputs.run(&widths);
        ConvolutionParts::from_parts(y, last)
    }

    fn short_convolution_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        state: Maybe<Self>,
        reset: Maybe<Self>,
        d_y: FloatTensor<Self>,
        d_last: Maybe<Self>,
    ) -> ConvolutionGradients<Self> {
        let inputs = Inputs {
            x,
            weight,
            bias: Maybe::None,
            state,
            reset,
            silu: false,
        };
        inputs.run_backward(vec![d_y], d_last)
    }

    fn short_convolution_silu_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Maybe<Self>,
        state: Maybe<Self>,
        reset: Maybe<Self>,
        d_first: FloatTensor<Self>,
        d_second: FloatTensor<Self>,
        d_third: FloatTensor<Self>,
        d_last: Maybe<Self>,
    ) -> ConvolutionGradients<Self> {
        let inputs = Inputs {
            x,
            weight,
            bias,
            state,
            reset,
            silu: true,
        };
        inputs.run_backward(vec![d_first, d_second, d_third], d_last)
    }
}
