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
use burn::tensor::{Shape as Dims, Tensor};
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
    checks::fits("weight", &x, &weight, &[taps, dim])?;
    checks::optional("bias", &x, bias.as_ref(), &[dim])?;
    checks::optional("state", &x, sequence.state.as_ref(), &[batch, before, dim])?;
    checks::reset(&x, sequence.reset.as_ref(), [batch, steps])?;
    checks::lengths(sequence.lengths.as_deref(), [batch, steps])?;
    let state = State {
        kind: StateKind::Convolution,
        shape: [batch, before, dim],
        dtype: x.dtype(),
        reverse: false,
    };
    handed_over(state, steps, x.clone(), sequence, |sequence| {
        let padding = padding(sequence.lengths.as_deref(), steps, &x.device());
        let Some(padding) = padding.filter(|_| batch * steps > 0) else {
            return Ok(run(x, weight, bias, sequence));
        };
        let x = fill(x, &padding, 0.0);
        let last = ragged::last_inputs(&x, &padding, &sequence, before);
        let (y, whole) = run(x, weight, bias, sequence);
        Ok((fill(y, &padding, 0.0), last.unwrap_or(whole)))
    })
}

/// The convolution of whole sequences.
fn run(
    x: Tensor<3>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    sequence: Sequence<Tensor<3>>,
) -> (Tensor<3>, Tensor<3>) {
    let dtype = x.dtype();
    let reset = sequence.reset.map(|reset| reset.float().cast(dtype));
    let (y, last) = <Dispatch as ShortConvolutionOps>::short_convolution(
        x.into_dispatch(),
        weight.into_dispatch(),
        Maybe::from_option(bias.map(Tensor::into_dispatch)),
        Maybe::from_option(sequence.state.map(Tensor::into_dispatch)),
        Maybe::from_option(reset.map(Tensor::into_dispatch)),
    );
    (Tensor::from_dispatch(y), Tensor::from_dispatch(last))
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

    use super::{ConvolutionGradientsMetadata, Dims, state_dims};
    use burn::backend::fusion::custom::TensorSpec;

    fn like(x: &TensorSpec, shape: Dims) -> TensorSpec {
        let mut like = x.clone();
        like.shape = shape;
        like
    }

    pub(super) fn outputs(x: &TensorSpec, weight: &TensorSpec) -> (TensorSpec, TensorSpec) {
        (x.clone(), like(x, state_dims(&x.shape, &weight.shape)))
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
}
