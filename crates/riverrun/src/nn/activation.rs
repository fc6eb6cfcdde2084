//! Activations that keep their accuracy in every dtype.

use burn::tensor::activation::relu;
use burn::tensor::{DType, FloatDType, Tensor};

use crate::device::is_cpu;
use crate::{Error, ops};

/// `ln(1 + e^x)`, accurate where the result is small, in `f64` too, and without overflow where it is large.
pub fn softplus<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    // Above this, the result is x itself in f32.
    const LARGE: f64 = 20.0;
    // Below this, a series: on GPUs the logarithm of 1 + e is no more accurate than 1 + e.
    const SMALL: f64 = 0.1;
    let e = x.clone().clamp_max(LARGE).exp();
    let far = e.clone().log1p() + relu(x - LARGE);
    if is_cpu(&far.device()) {
        return far;
    }
    // ln(1 + e) = 2 artanh w.
    let w = e.clone() / (e.clone() + 2.0);
    let square = w.clone() * w.clone();
    let eleventh = square.clone() / 11.0 + 1.0 / 9.0;
    let odd = [7.0, 5.0, 3.0, 1.0].into_iter();
    let series = odd.fold(eleventh, |sum, n| sum * square.clone() + 1.0 / n);
    let near = w * 2.0 * series;
    near.mask_where(e.greater_elem(SMALL), far)
}

/// `f16` and `bf16` as `f32`.
pub fn wide<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    match x.dtype() {
        DType::F16 | DType::BF16 => x.cast(FloatDType::F32),
        _ => x,
    }
}

/// `x σ(x)`, rounded once.
pub fn silu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    ops::silu(x).unwrap_or_else(Error::raise)
}

/// `σ(x)`, rounded once.
pub fn sigmoid<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    ops::sigmoid(x).unwrap_or_else(Error::raise)
}

/// `ln σ(x)` as [`wide`] numbers, accurate where `σ(x)` is near 0 and near 1.
pub fn log_sigmoid<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    softplus(wide(x).neg()).neg()
}
