//! The CPU.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::Shape as Dims;
use burn_flex::FlexTensor;
use riverrun_kernels::short_convolution::Shape;
use riverrun_kernels::short_convolution::cpu::{Backward, Forward, backward, forward};

use super::{ConvolutionGradients, ShortConvolutionOps, sizes, state_dims};
use crate::ops::support::Maybe;
use crate::ops::support::flex::{Storage, by_dtype, contiguous, dense, mask, zeros};

/// The tensors that both passes read, contiguous.
struct Inputs {
    x: FlexTensor,
    weight: FlexTensor,
    state: Option<FlexTensor>,
    reset: Option<FlexTensor>,
}

fn run<E: Storage>(
    shape: Shape,
    inputs: &Inputs,
    bias: Option<&FlexTensor>,
    y: &mut FlexTensor,
    last: &mut FlexTensor,
) {
    let reset = mask::<E>(&inputs.reset);
    let args = Forward {
        x: contiguous::<E>(&inputs.x),
        weight: contiguous(&inputs.weight),
        bias: bias.map(contiguous),
        state: inputs.state.as_ref().map(contiguous),
        reset: reset.as_deref(),
        y: y.storage_mut(),
        last: last.storage_mut(),
    };
    forward(shape, args).unwrap_or_else(|error| panic!("{error}"));
}

fn run_backward<E: Storage>(
    shape: Shape,
    inputs: &Inputs,
    d_y: &FlexTensor,
    d_last: Option<&FlexTensor>,
    d: &mut ConvolutionGradients<Flex>,
) {
    let reset = mask::<E>(&inputs.reset);
    let args = Backward {
        x: contiguous::<E>(&inputs.x),
        weight: contiguous(&inputs.weight),
        state: inputs.state.as_ref().map(contiguous),
        reset: reset.as_deref(),
        d_y: contiguous(d_y),
        d_last: d_last.map(contiguous),
        d_x: d.x.storage_mut(),
        d_weight: d.weight.storage_mut(),
        d_bias: d.bias.storage_mut(),
        d_state: d.state.storage_mut(),
    };
    backward(shape, args).unwrap_or_else(|error| panic!("{error}"));
}

impl ShortConvolutionOps for Flex {
    fn short_convolution(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Maybe<Self>,
        state: Maybe<Self>,
        reset: Maybe<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (dtype, shape) = (x.dtype(), sizes(&x.shape(), &weight.shape()));
        let mut y = zeros(x.shape(), dtype);
        let mut last = zeros(state_dims(&x.shape(), &weight.shape()), dtype);
        let inputs = Inputs {
            x: x.to_contiguous(),
            weight: weight.to_contiguous(),
            state: dense(state),
            reset: dense(reset),
        };
        let bias = dense(bias);
        by_dtype!(dtype, run(shape, &inputs, bias.as_ref(), &mut y, &mut last));
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
        let (dtype, shape) = (x.dtype(), sizes(&x.shape(), &weight.shape()));
        let mut d = ConvolutionGradients::<Self> {
            x: zeros(x.shape(), dtype),
            weight: zeros(weight.shape(), dtype),
            bias: zeros(Dims::new([x.shape()[2]]), dtype),
            state: zeros(state_dims(&x.shape(), &weight.shape()), dtype),
        };
        let inputs = Inputs {
            x: x.to_contiguous(),
            weight: weight.to_contiguous(),
            state: dense(state),
            reset: dense(reset),
        };
        let (d_y, d_last) = (d_y.to_contiguous(), dense(d_last));
        by_dtype!(
            dtype,
            run_backward(shape, &inputs, &d_y, d_last.as_ref(), &mut d)
        );
        d
    }
}
