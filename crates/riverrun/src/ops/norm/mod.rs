//! RMSNorm and LayerNorm, alone and with the addition before them: one pass over memory each way, on every backend.

#[cfg(feature = "autodiff")]
mod autodiff;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, ExtensionType, backend_extension};
use burn::tensor::Tensor;
pub use riverrun_kernels::norm::Kind as NormKind;
pub use riverrun_kernels::norm::Spec as NormSpec;

use super::support::map::map_tensors;
use super::support::{Maybe, checks};
use crate::Error;

/// RMSNorm over the last dimension: `x γ / √(mean x² + ε)`.
///
/// # Arguments
/// - `x`: `[.., D]`, any float dtype; sums are in `f32` or wider.
/// - `gamma`: `[D]`, of the same dtype.
///
/// Source: Zhang & Sennrich, *Root Mean Square Layer Normalization* (2019), equation 4.
///
/// # Errors
/// A length that is not the last dimension of `x`; a dtype or device that is not that of `x`; a dtype that the device lacks.
pub fn rms_norm<const D: usize>(
    x: Tensor<D>,
    gamma: Tensor<1>,
    epsilon: f64,
) -> Result<Tensor<D>, Error> {
    norm(x, gamma, None, rms(epsilon))
}

/// `(rms_norm(s), s)` with `s = x + residual`: the addition of a residual block and the norm after it, in one pass over
/// memory, and in one pass back.
///
/// # Arguments
/// - `x`, `residual`: `[.., D]`, any float dtype, the same.
/// - `gamma`: `[D]`, of the same dtype.
///
/// # Errors
/// The errors of [`rms_norm`]; a `residual` whose shape or dtype is not that of `x`.
pub fn add_rms_norm<const D: usize>(
    x: Tensor<D>,
    residual: Tensor<D>,
    gamma: Tensor<1>,
    epsilon: f64,
) -> Result<(Tensor<D>, Tensor<D>), Error> {
    add_norm(x, residual, gamma, None, rms(epsilon))
}

/// LayerNorm over the last dimension: `(x - mean x) γ / √(var x + ε) + β`, with the variance over `D`.
///
/// # Arguments
/// - `x`: `[.., D]`, any float dtype; sums are in `f32` or wider, and the variance is that of `x - mean x`.
/// - `gamma`, `beta`: `[D]`, of the same dtype.
///
/// Source: Ba, Kiros & Hinton, *Layer Normalization* (2016), equation 4.
///
/// # Errors
/// A length that is not the last dimension of `x`; a dtype or device that is not that of `x`; a dtype that the device lacks.
pub fn layer_norm<const D: usize>(
    x: Tensor<D>,
    gamma: Tensor<1>,
    beta: Option<Tensor<1>>,
    epsilon: f64,
) -> Result<Tensor<D>, Error> {
    norm(x, gamma, beta, layer(epsilon))
}

fn rms(epsilon: f64) -> NormSpec {
    NormSpec {
        kind: NormKind::Rms,
        epsilon,
    }
}

fn layer(epsilon: f64) -> NormSpec {
    NormSpec {
        kind: NormKind::Layer,
        epsilon,
    }
}

/// Either norm of `x`, `[.., D]`, with an offset `beta` that may be absent.
///
/// [`norm()`].
///
/// # Errors
/// A `gamma` or `beta` whose length is not the last dimension, or whose dtype or device is not that of `x`; a dtype that the
/// device lacks.
pub fn norm<const D: usize>(
    x: Tensor<D>,
    gamma: Tensor<1>,
    beta: Option<Tensor<1>>,
    spec: NormSpec,
) -> Result<Tensor<D>, Error> {
    check(&x, &gamma, beta.as_ref())?;
    let beta = Maybe::from_option(beta.map(Tensor::into_dispatch));
    let y = <Dispatch as NormOps>::norm(x.into_dispatch(), gamma.into_dispatch(), beta, spec);
    Ok(Tensor::from_dispatch(y))
}

/// Either norm of `s = x + residual`, and `s`.
///
/// # Errors
/// The errors of [`norm`]; a `residual` whose shape or dtype is not that of `x`.
pub fn add_norm<const D: usize>(
    x: Tensor<D>,
    residual: Tensor<D>,
    gamma: Tensor<1>,
    beta: Option<Tensor<1>>,
    spec: NormSpec,
) -> Result<(Tensor<D>, Tensor<D>), Error> {
    check(&x, &gamma, beta.as_ref())?;
    checks::fits("residual", &x, &residual, &x.dims())?;
    let beta = Maybe::from_option(beta.map(Tensor::into_dispatch));
    let (y, sum) = <Dispatch as NormOps>::add_norm(
        x.into_dispatch(),
        residual.into_dispatch(),
        gamma.into_dispatch(),
        beta,
        spec,
    );
    Ok((Tensor::from_dispatch(y), Tensor::from_dispatch(sum)))
}

fn check<const D: usize>(
    x: &Tensor<D>,
    gamma: &Tensor<1>,
    beta: Option<&Tensor<1>>,
) -> Result<(), Error> {
    let dim = x.dims()[D - 1];
    checks::supported("x", &x.device(), x.dtype())?;
    checks::fits("gamma", x, gamma, &[dim])?;
    checks::optional("beta", x, beta, &[dim])
}

/// Gradients of a norm.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub struct NormGradients<B: Backend> {
    /// The gradient of `x`, in its shape.
    pub x: FloatTensor<B>,
    /// `[D]`.
    pub gamma: FloatTensor<B>,
    /// `[D]`, if there is an offset.
    #[extension_type]
    pub beta: Maybe<B>,
}

map_tensors!(NormGradients {
    tensors: [x, gamma],
    nested: [beta],
    integers: []
});

#[cfg(feature = "cube")]
mod fused {
    //! The shapes of the outputs, which fusion needs before an operation runs.

    use super::NormGradientsMetadata;
    use crate::ops::support::MaybeMetadata;
    use burn::backend::fusion::custom::TensorSpec;

    pub(super) fn gradients(
        x: &TensorSpec,
        gamma: &TensorSpec,
        offset: bool,
    ) -> NormGradientsMetadata {
        NormGradientsMetadata {
            x: x.clone(),
            gamma: gamma.clone(),
            beta: if offset {
                MaybeMetadata::Some(gamma.clone())
            } else {
                MaybeMetadata::None
            },
        }
    }
}

/// The norms on a backend. Shapes and dtypes have been checked by the functions of [`ops`](super).
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "cube"),
    Autodiff: cfg(feature = "autodiff"),
)]
pub trait NormOps: Backend {
    /// See [`norm`].
    #[fusion(meta = |x, _gamma, _beta, _spec| x.clone())]
    fn norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        #[extension_type] beta: Maybe<Self>,
        spec: NormSpec,
    ) -> FloatTensor<Self>;

    /// See [`add_norm`].
    #[fusion(meta = |x, _residual, _gamma, _beta, _spec| (x.clone(), x.clone()))]
    fn add_norm(
        x: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        #[extension_type] beta: Maybe<Self>,
        spec: NormSpec,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// The gradients from `∂L/∂y` and `∂L/∂s`, which is added to that of `x`; `offset`: whether there is a `beta`.
    #[fusion(meta = |x, gamma, _d_y, _d_sum, offset, _spec| fused::gradients(x, gamma, *offset))]
    fn norm_backward(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        #[extension_type] d_sum: Maybe<Self>,
        offset: bool,
        spec: NormSpec,
    ) -> NormGradients<Self>;
}
