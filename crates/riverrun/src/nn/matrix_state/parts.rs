//! Functions that the layers share.

use burn::tensor::activation;
use burn::tensor::{DType, FloatDType, Tensor};

use crate::Error;
use crate::ops::rms_norm;

/// Added to the sum of squares of a key or query, inside the root.
const SQUARES: f64 = 1e-6;

/// Refuses a field of a configuration that is not above 0.
pub(super) fn positive(layer: &str, field: &str, value: f64) -> Result<(), Error> {
    match value > 0.0 && value.is_finite() {
        true => Ok(()),
        false => Err(Error::Invalid(format!(
            "{layer}: {field}: expected a number above 0, found {value}"
        ))),
    }
}

/// `f16` and `bf16` as `f32`.
pub(super) fn wide<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    match x.dtype() {
        DType::F16 | DType::BF16 => x.cast(FloatDType::F32),
        _ => x,
    }
}

/// `x σ(x)`, rounded once.
pub(super) fn silu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let dtype = x.dtype();
    activation::silu(wide(x)).cast(dtype)
}

/// `σ(x)`, rounded once.
pub(super) fn sigmoid<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let dtype = x.dtype();
    activation::sigmoid(wide(x)).cast(dtype)
}

/// `scale x / √(Σ x² + 1e-6)` over the last dimension.
pub(super) fn unit_norm(x: Tensor<4>, scale: f64) -> Result<Tensor<4>, Error> {
    // √(Σ x² + ε) = √K √(mean x² + ε / K).
    let channels = x.dims()[3];
    let gamma = scale / (channels as f64).sqrt();
    let gamma = Tensor::full([channels], gamma, (&x.device(), x.dtype()));
    rms_norm(x, gamma, SQUARES / channels as f64)
}
