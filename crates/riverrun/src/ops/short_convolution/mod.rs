//! A short causal convolution along time, channel by channel, as a kernel on every device.

#[cfg(feature = "autodiff")]
mod autodiff;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;
mod ragged;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, ExtensionType, backend_extension};
use burn::tensor::{DType, Shape as Dims, Tensor};
use riverrun_kernels::short_convolution::Shape;

use super::hand_over::{State, StateKind, handed_over};
use super::support::lengths::{fill, padding};
use super::support::map::map_tensors;
use super::support::{Maybe, checks};
use crate::{Error, Sequence};

/// `y_t = Σ_j w_j ∘ x_{t-K+1+j} + bias`: each channel is convolved with its own `K` weights, the last of which belongs to the
/// step itself. One kernel each way: see [`riverrun_kernels::short_convolution`]. The backward pass saves `x`, the weight and the
/// state.
///
/// # Arguments
/// - `x`: `[B, T, D]`, any float dtype.
/// - `weight`: `[K, D]`, `K ≥ 1`, at most 64 on a GPU, of the same dtype.
/// - `bias`: `[D]`.
/// - `sequence`: the last `K - 1` inputs before the first step, `[B, K - 1, D]`, zeros when absent; a reset `[B, T]` hides the
///   inputs before it.
///
/// # Returns
/// `[B, T, D]` and the state for the next chunk.
///
/// Source: De et al., *Griffin* (2024), section 2.3 (the temporal convolution of the recurrent block, `K = 4`).
///
/// # Errors
/// Shapes, dtypes or devices that do not fit, a dtype that the device lacks.
pub fn short_convolution(
    x: Tensor<3>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    sequence: Sequence<Tensor<3>>,
) -> Result<(Tensor<3>, Tensor<3>), Error> {
    let state = check(&x, &weight, bias.as_ref(), &sequence)?;
    let (steps, input) = (x.dims()[1], x.clone());
    handed_over(state, steps, input, sequence, |sequence| {
        let run = |x, sequence| {
            let (y, last) = run(x, weight, bias, sequence);
            ([y], last)
        };
        let ([y], last) = padded(x, state.shape[1], sequence, run);
        Ok((y, last))
    })
}

/// SiLU of a [`short_convolution`], cut along its channels into parts of these widths: what a delta rule or a state-space layer
/// makes of its queries, keys and values, in the same pass over memory each way.
///
/// # Arguments
/// As those of [`short_convolution`]; `widths`: channels of the parts, whose sum is `D`.
///
/// # Returns
/// The parts, `[B, T, width]` each, and the state for the next chunk.
///
/// Source: Yang et al., *Gated Delta Networks* (2024), section 3.4; Dao & Gu, *Transformers are SSMs* (2024), section 7.
///
/// # Errors
/// Those of [`short_convolution`]; widths whose sum is not `D`.
pub fn short_convolution_silu(
    x: Tensor<3>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    sequence: Sequence<Tensor<3>>,
    widths: [usize; 3],
) -> Result<([Tensor<3>; 3], Tensor<3>), Error> {
    let [.., dim] = x.dims();
    if widths.iter().sum::<usize>() != dim {
        return Err(Error::Invalid(format!(
            "short_convolution_silu: widths: expected numbers whose sum is the {dim} channels, found {widths:?}"
        )));
    }
    let state = check(&x, &weight, bias.as_ref(), &sequence)?;
    let (steps, input) = (x.dims()[1], x.clone());
    let mut later = None;
    let (first, last) = handed_over(state, steps, input, sequence, |sequence| {
        let run = |x, sequence| run_silu(x, weight, bias, sequence, widths);
        let ([first, second, third], last) = padded(x, state.shape[1], sequence, run);
        later = Some((second, third));
        Ok((first, last))
    })?;
    let (second, third) = later.expect("the convolution has run");
    Ok(([first, second, third], last))
}

/// Refuses what does not fit; the state of the convolution.
fn check(
    x: &Tensor<3>,
    weight: &Tensor<2>,
    bias: Option<&Tensor<1>>,
    sequence: &Sequence<Tensor<3>>,
) -> Result<State<3>, Error> {
    let [batch, steps, dim] = x.dims();
    let taps = weight.dims()[0];
    checks::supported("x", &x.device(), x.dtype())?;
    if taps == 0 || dim == 0 {
        return Err(riverrun_kernels::Error::NoChannels.into());
    }
    #[cfg(feature = "cube")]
    if taps > riverrun_kernels::short_convolution::gpu::LARGEST && checks::on_gpu(&x.device()) {
        return Err(Error::Unsupported(format!(
            "short_convolution on a GPU: {taps} weights a channel, the kernel takes up to {}",
            riverrun_kernels::short_convolution::gpu::LARGEST
        )));
    }
    let before = taps - 1;
    checks::fits("weight", x, weight, &[taps, dim])?;
    checks::optional("bias", x, bias, &[dim])?;
    checks::optional("state", x, sequence.state.as_ref(), &[batch, before, dim])?;
    checks::reset(x, sequence.reset.as_ref(), [batch, steps])?;
    checks::lengths(sequence.lengths.as_deref(), [batch, steps])?;
    Ok(State {
        kind: StateKind::Convolution,
        shape: [batch, before, dim],
        dtype: x.dtype(),
        reverse: false,
    })
}

/// Runs a convolution whose state has `before` inputs on sequences that may be padded.
fn padded<const N: usize>(
    x: Tensor<3>,
    before: usize,
    sequence: Sequence<Tensor<3>>,
    run: impl FnOnce(Tensor<3>, Sequence<Tensor<3>>) -> ([Tensor<3>; N], Tensor<3>),
) -> ([Tensor<3>; N], Tensor<3>) {
    let [batch, steps, _] = x.dims();
    let padding = padding(sequence.lengths.as_deref(), steps, &x.device());
    let Some(padding) = padding.filter(|_| batch * steps > 0) else {
        return run(x, sequence);
    };
    let x = fill(x, &padding, 0.0);
    let last = ragged::last_inputs(&x, &padding, &sequence, before);
    let (y, whole) = run(x, sequence);
    (y.map(|y| fill(y, &padding, 0.0)), last.unwrap_or(whole))
}

/// The optional tensors of a call: bias, state and reset.
type Optional = [Maybe<Dispatch>; 3];

fn optional(bias: Option<Tensor<1>>, sequence: Sequence<Tensor<3>>, dtype: DType) -> Optional {
    let reset = sequence.reset.map(|reset| reset.float().cast(dtype));
    [
        Maybe::from_option(bias.map(Tensor::into_dispatch)),
        Maybe::from_option(sequence.state.map(Tensor::into_dispatch)),
        Maybe::from_option(reset.map(Tensor::into_dispatch)),
    ]
}

/// The convolution of whole sequences.
fn run(
    x: Tensor<3>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    sequence: Sequence<Tensor<3>>,
) -> (Tensor<3>, Tensor<3>) {
    let [bias, state, reset] = optional(bias, sequence, x.dtype());
    let (x, weight) = (x.into_dispatch(), weight.into_dispatch());
    let (y, last) =
        <Dispatch as ShortConvolutionOps>::short_convolution(x, weight, bias, state, reset);
    (Tensor::from_dispatch(y), Tensor::from_dispatch(last))
}

/// Its SiLU in parts.
fn run_silu(
    x: Tensor<3>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    sequence: Sequence<Tensor<3>>,
    widths: [usize; 3],
) -> ([Tensor<3>; 3], Tensor<3>) {
    let [bias, state, reset] = optional(bias, sequence, x.dtype());
    let parts = <Dispatch as ShortConvolutionOps>::short_convolution_silu(
        x.into_dispatch(),
        weight.into_dispatch(),
        bias,
        state,
        reset,
        widths,
    );
    let y = [parts.first, parts.second, parts.third].map(Tensor::from_dispatch);
    (y, Tensor::from_dispatch(parts.last))
}

/// The sizes of a convolution of `x`, `[B, T, D]`, by weights `[K, D]`.
fn sizes(x: &Dims, weight: &Dims) -> Shape {
    Shape {
        batch: x[0],
        steps: x[1],
        dim: x[2],
        taps: weight[0],
    }
}

/// The dimensions of a state.
fn state_dims(x: &Dims, weight: &Dims) -> Dims {
    Dims::new([x[0], weight[0] - 1, x[2]])
}

/// The dimensions of a part of the channels.
fn part_dims(x: &Dims, width: usize) -> Dims {
    Dims::new([x[0], x[1], width])
}

/// SiLU of a convolution in parts, and the state after the last step.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub struct ConvolutionParts<B: Backend> {
    /// `[B, T, widths[0]]`.
    pub first: FloatTensor<B>,
    /// `[B, T, widths[1]]`.
    pub second: FloatTensor<B>,
    /// `[B, T, widths[2]]`.
    pub third: FloatTensor<B>,
    /// `[B, K - 1, D]`.
    pub last: FloatTensor<B>,
}

impl<B: Backend> ConvolutionParts<B> {
    /// From three parts and the state.
    fn from_parts(parts: Vec<FloatTensor<B>>, last: FloatTensor<B>) -> Self {
        let mut parts = parts.into_iter();
        let mut next = || parts.next().expect("three parts");
        Self {
            first: next(),
            second: next(),
            third: next(),
            last,
        }
    }
}

/// Gradients of a convolution.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub struct ConvolutionGradients<B: Backend> {
    /// `[B, T, D]`.
    pub x: FloatTensor<B>,
    /// `[K, D]`.
    pub weight: FloatTensor<B>,
    /// `[D]`.
    pub bias: FloatTensor<B>,
    /// `[B, K - 1, D]`.
    pub state: FloatTensor<B>,
}

map_tensors!(ConvolutionGradients {
    tensors: [x, weight, bias, state],
    nested: [],
    integers: []
});

#[cfg(feature = "cube")]
mod fused {
    //! The shapes of the outputs, which fusion needs before an operation runs.

    use super::{
        ConvolutionGradientsMetadata, ConvolutionPartsMetadata, Dims, part_dims, state_dims,
    };
    use burn::backend::fusion::custom::TensorSpec;

    fn like(x: &TensorSpec, shape: Dims) -> TensorSpec {
        let mut like = x.clone();
        like.shape = shape;
        like
    }

    pub(super) fn outputs(x: &TensorSpec, weight: &TensorSpec) -> (TensorSpec, TensorSpec) {
        (x.clone(), like(x, state_dims(&x.shape, &weight.shape)))
    }

    pub(super) fn parts(
        x: &TensorSpec,
        weight: &TensorSpec,
        widths: &[usize; 3],
    ) -> ConvolutionPartsMetadata {
        let [first, second, third] = widths.map(|width| like(x, part_dims(&x.shape, width)));
        ConvolutionPartsMetadata {
            first,
            second,
            third,
            last: like(x, state_dims(&x.shape, &weight.shape)),
        }
    }

    pub(super) fn gradients(x: &TensorSpec, weight: &TensorSpec) -> ConvolutionGradientsMetadata {
        ConvolutionGradientsMetadata {
            x: x.clone(),
            weight: weight.clone(),
            bias: like(x, Dims::new([x.shape[2]])),
            state: like(x, state_dims(&x.shape, &weight.shape)),
        }
    }
}

/// The convolution on a backend. Shapes and dtypes have been checked by [`short_convolution`].
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "cube"),
    Autodiff: cfg(feature = "autodiff"),
)]
pub trait ShortConvolutionOps: Backend {
    /// `[B, T, D]` and the state after the last step, `[B, K - 1, D]`. `reset`: `[B, T]`, not 0 where a sequence restarts.
    #[fusion(meta = |x, weight, _bias, _state, _reset| fused::outputs(x, weight))]
    fn short_convolution(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        #[extension_type] bias: Maybe<Self>,
        #[extension_type] state: Maybe<Self>,
        #[extension_type] reset: Maybe<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// The gradients from `∂L/∂y` and that of the state after the last step.
    #[fusion(meta = |x, weight, _state, _reset, _d_y, _d_last| fused::gradients(x, weight))]
    fn short_convolution_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        #[extension_type] state: Maybe<Self>,
        #[extension_type] reset: Maybe<Self>,
        d_y: FloatTensor<Self>,
        #[extension_type] d_last: Maybe<Self>,
    ) -> ConvolutionGradients<Self>;

    /// SiLU of the convolution, cut along its channels, and the state after the last step.
    #[fusion(meta = |x, weight, _bias, _state, _reset, widths| fused::parts(x, weight, widths))]
    fn short_convolution_silu(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        #[extension_type] bias: Maybe<Self>,
        #[extension_type] state: Maybe<Self>,
        #[extension_type] reset: Maybe<Self>,
        widths: [usize; 3],
    ) -> ConvolutionParts<Self>;

    /// The gradients from those of the parts and that of the state after the last step.
    #[fusion(meta = |x, weight, _bias, _state, _reset, _d_first, _d_second, _d_third, _d_last| fused::gradients(x, weight))]
    fn short_convolution_silu_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        #[extension_type] bias: Maybe<Self>,
        #[extension_type] state: Maybe<Self>,
        #[extension_type] reset: Maybe<Self>,
        d_first: FloatTensor<Self>,
        d_second: FloatTensor<Self>,
        d_third: FloatTensor<Self>,
        #[extension_type] d_last: Maybe<Self>,
    ) -> ConvolutionGradients<Self>;
}
