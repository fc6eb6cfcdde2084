//! The CPU.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::Shape as Dims;
use burn_flex::FlexTensor;
use riverrun_kernels::short_convolution::Shape;
use riverrun_kernels::short_convolution::cpu::{Backward, Forward, backward, forward};

use super::{
    ConvolutionGradients, ConvolutionParts, ShortConvolutionOps, part_dims, sizes, state_dims,
};
use crate::ops::support::Maybe;
use crate::ops::support::flex::{Storage, by_dtype, contiguous, dense, mask, zeros};

/// The tensors that both passes read, contiguous.
struct Inputs {
    x: FlexTensor,
    weight: FlexTensor,
    bias: Option<FlexTensor>,
    state: Option<FlexTensor>,
    reset: Option<FlexTensor>,
    silu: bool,
}

fn run<E: Storage>(shape: Shape, inputs: &Inputs, y: &mut [FlexTensor], last: &mut FlexTensor) {
    let reset = mask::<E>(&inputs.reset);
    let args = Forward {
        x: contiguous::<E>(&inputs.x),
        weight: contiguous(&inputs.weight),
        bias: inputs.bias.as_ref().map(contiguous),
        state: inputs.state.as_ref().map(contiguous),
        reset: reset.as_deref(),
        silu: inputs.silu,
        y: y.iter_mut()
            .map(|y| (y.shape()[2], y.storage_mut()))
            .collect(),
        last: last.storage_mut(),
    };
    forward(shape, args).unwrap_or_else(|error| panic!("{error}"));
}

fn run_backward<E: Storage>(
    shape: Shape,
    inputs: &Inputs,
    d_y: &[FlexTensor],
    d_last: Option<&FlexTensor>,
    d: &mut ConvolutionGradients<Flex>,
) {
    let reset = mask::<E>(&inputs.reset);
    let args = Backward {
        x: contiguous::<E>(&inputs.x),
        weight: contiguous(&inputs.weight),
        bias: inputs.bias.as_ref().map(contiguous),
        state: inputs.state.as_ref().map(contiguous),
        reset: reset.as_deref(),
        silu: inputs.silu,
        d_y: d_y.iter().map(|d| (d.shape()[2], contiguous(d))).collect(),
        d_last: d_last.map(contiguous),
        d_x: d.x.storage_mut(),
        d_weight: d.weight.storage_mut(),
        d_bias: d.bias.storage_mut(),
        d_state: d.state.storage_mut(),
    };
    backward(shape, args).unwrap_or_else(|error| panic!("{error}"));
}

impl Inputs {
    fn new(
        x: FlexTensor,
        weight: FlexTensor,
        [bias, state, reset]: [Maybe<Flex>; 3],
        silu: bool,
    ) -> Self {
        Self {
            x: x.to_contiguous(),
            weight: weight.to_contiguous(),
            bias: dense(bias),
            state: dense(state),
            reset: dense(reset),
            silu,
        }
    }

    /// The parts of `y` with these channels, and the state after the last step.
    fn run(&self, widths: &[usize]) -> (Vec<FlexTensor>, FlexTensor) {
        let (x, weight) = (self.x.shape(), self.weight.shape());
        let (dtype, shape) = (self.x.dtype(), sizes(&x, &weight));
        let part = |width: &usize| zeros(part_dims(&x, *width), dtype);
        let mut y: Vec<FlexTensor> = widths.iter().map(part).collect();
        let mut last = zeros(state_dims(&x, &weight), dtype);
        by_dtype!(dtype, run(shape, self, &mut y, &mut last));
        (y, last)
    }

    fn run_backward(
        &self,
        d_y: Vec<FlexTensor>,
        d_last: Maybe<Flex>,
    ) -> ConvolutionGradients<Flex> {
        let (x, weight) = (self.x.shape(), self.weight.shape());
        let (dtype, shape) = (self.x.dtype(), sizes(&x, &weight));
        let mut d = ConvolutionGradients::<Flex> {
            x: zeros(x.clone(), dtype),
            weight: zeros(weight.clone(), dtype),
            bias: zeros(Dims::new([x[2]]), dtype),
            state: zeros(state_dims(&x, &weight), dtype),
        };
        let d_y: Vec<FlexTensor> = d_y.into_iter().map(|d| d.to_contiguous()).collect();
        let d_last = dense(d_last);
        by_dtype!(
            dtype,
            run_backward(shape, self, &d_y, d_last.as_ref(), &mut d)
        );
        d
    }
}

impl ShortConvolutionOps for Flex {
    fn short_convolution(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Maybe<Self>,
        state: Maybe<Self>,
        reset: Maybe<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let widths = [x.shape()[2]];
        let (mut y, last) = Inputs::new(x, weight, [bias, state, reset], false).run(&widths);
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
        let (y, last) = Inputs::new(x, weight, [bias, state, reset], true).run(&widths);
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
        let inputs = Inputs::new(x, weight, [Maybe::None, state, reset], false);
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
        let inputs = Inputs::new(x, weight, [bias, state, reset], true);
        inputs.run_backward(vec![d_first, d_second, d_third], d_last)
    }
}
