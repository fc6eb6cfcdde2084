//! `ln(1 + e^x)`.

use burn::tensor::Tensor;
use burn::tensor::activation::relu;

use crate::device::is_cpu;

/// `ln(1 + e^x)`, accurate where the result is small, in `f64` too, and without overflow where it is large.
pub(super) fn softplus<const D: usize>(x: Tensor<D>) -> Tensor<D> {
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
