//! RMSNorm and LayerNorm, alone and with the addition before them: one pass over memory each way, on every backend.

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

use super::support::{Maybe, checks};
use crate::Error;

/// RMSNorm over the last dimension: `x γ / √(mean x² + ε)`.
///
/// # Arguments
/// - `x`: `[.., D]`, any float dtype; sums are in `f32` or wider.
/// - `gamma`: `[D]`, of the same dtype.
///
/// # Panics
/// Where [`try_norm`] returns an error.
///
/// Source: Zhang & Sennrich, *Root Mean Square Layer Normalization* (2019), equation 4.
pub fn rms_norm<const D: usize>(x: Tensor<D>, gamma: Tensor<1>, epsilon: f64) -> Tensor<D> {
    try_norm(x, gamma, None, rms(epsilon)).unwrap_or_else(|error| panic!("rms_norm: {error}"))
}

/// `(rms_norm(s), s)` with `s = x + residual`: the addition of a residual block and the norm after it, in one pass over
/// memory.
///
/// # Arguments
/// - `x`, `residual`: `[.., D]`, any float dtype, the same.
/// - `gamma`: `[D]`, of the same dtype.
///
/// # Panics
/// Where [`try_add_norm`] returns an error.
pub fn add_rms_norm<const D: usize>(
    x: Tensor<D>,
    residual: Tensor<D>,
    gamma: Tensor<1>,
    epsilon: f64,
) -> (Tensor<D>, Tensor<D>) {
    try_add_norm(x, residual, gamma, None, rms(epsilon))
        .unwrap_or_else(|error| panic!("add_rms_norm: {error}"))
}

/// LayerNorm over the last dimension: `(x - mean x) γ / √(var x + ε) + β`, with the variance over `D`.
///
/// # Arguments
/// - `x`: `[.., D]`, any float dtype; sums are in `f32` or wider, the variance is of what the mean leaves.
/// - `gamma`, `beta`: `[D]`, of the same dtype.
///
/// # Panics
/// Where [`try_norm`] returns an error.
///
/// Source: Ba, Kiros & Hinton, *Layer Normalization* (2016), equation 4.
pub fn layer_norm<const D: usize>(
    x: Tensor<D>,
    gamma: Tensor<1>,
    beta: Option<Tensor<1>>,
    epsilon: f64,
) -> Tensor<D> {
    let spec = NormSpec {
        kind: NormKind::Layer,
        epsilon,
    };
    try_norm(x, gamma, beta, spec).unwrap_or_else(|error| panic!("layer_norm: {error}"))
}

fn rms(epsilon: f64) -> NormSpec {
    NormSpec {
        kind: NormKind::Rms,
        epsilon,
    }
}

/// Either norm of `x`, `[.., D]`, with an offset `beta` that may be absent.
///
/// # Errors
/// Where `gamma` or `beta` have another length than the last dimension, or another dtype.
pub fn try_norm<const D: usize>(
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
/// As [`try_norm`]; where `residual` has another shape or dtype than `x`.
pub fn try_add_norm<const D: usize>(
    x: Tensor<D>,
    residual: Tensor<D>,
    gamma: Tensor<1>,
    beta: Option<Tensor<1>>,
    spec: NormSpec,
) -> Result<(Tensor<D>, Tensor<D>), Error> {
    check(&x, &gamma, beta.as_ref())?;
    checks::same_shape("residual", &x, &residual)?;
    checks::same_dtype("residual", &x, &residual)?;
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
    let weights = [("gamma", Some(gamma)), ("beta", beta)];
    for (what, weight) in weights
        .map(|(what, weight)| weight.map(|weight| (what, weight)))
        .into_iter()
        .flatten()
    {
        checks::length(what, weight, dim)?;
        checks::same_dtype(what, x, weight)?;
    }
    Ok(())
}

/// What a backward pass returns.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub struct NormGradients<B: Backend> {
    /// Of the shape of `x`.
    pub x: FloatTensor<B>,
    /// `[D]`.
    pub gamma: FloatTensor<B>,
    /// `[D]`, if there is an offset.
    #[extension_type]
    pub beta: Maybe<B>,
}

#[cfg(feature = "cube")]
mod fused {
    //! What fusion must know of an operation before it runs: the shapes of its outputs.

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
    Autodiff,
)]
pub trait NormOps: Backend {
    /// See [`try_norm`].
    #[fusion(meta = |x, _gamma, _beta, _spec| x.clone())]
    fn norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        #[extension_type] beta: Maybe<Self>,
        spec: NormSpec,
    ) -> FloatTensor<Self>;

    /// See [`try_add_norm`].
    #[fusion(meta = |x, _residual, _gamma, _beta, _spec| (x.clone(), x.clone()))]
    fn add_norm(
        x: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        #[extension_type] beta: Maybe<Self>,
        spec: NormSpec,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// The gradients from `∂L/∂y`; `offset` says whether there is a `beta`.
    #[fusion(meta = |x, gamma, _d_y, offset, _spec| fused::gradients(x, gamma, *offset))]
    fn norm_backward(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        offset: bool,
        spec: NormSpec,
    ) -> NormGradients<Self>;
}
