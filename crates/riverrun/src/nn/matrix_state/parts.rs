//! Functions that the layers share.

use burn::tensor::{DType, Device, Tensor};

use crate::Error;
use crate::nn::LayerNorm;
pub(super) use crate::nn::activation::{log_sigmoid, sigmoid, silu, wide};
pub(super) use crate::nn::size::count;
use crate::ops::linear::every_step;
use crate::ops::{layer_norm, rms_norm};

/// Added to the sum of squares of a key or query, inside the root.
pub(super) const SQUARES: f64 = 1e-6;

/// Refuses a field of a configuration that is not above 0.
pub(super) fn positive(layer: &str, field: &str, value: f64) -> Result<(), Error> {
    match value > 0.0 && value.is_finite() {
        true => Ok(()),
        false => Err(Error::Invalid(format!(
            "{layer}: {field}: expected a number above 0, found {value}"
        ))),
    }
}

/// `β`: `σ(x)`, or twice that.
pub(super) fn erase_rate(x: Tensor<3>, negative_eigenvalues: bool) -> Tensor<3> {
    match negative_eigenvalues {
        true => sigmoid(x) * 2.0,
        false => sigmoid(x),
    }
}

/// A tensor of one number, made on the device: `full` uploads its numbers, and a recorded step takes no writes.
pub(super) fn filled<const D: usize>(
    shape: [usize; D],
    number: f64,
    options: (&Device, DType),
) -> Tensor<D> {
    Tensor::zeros(shape, options) + number
}

/// `[n]`: from one number to another along `(i / (n - 1))^power`.
pub(super) fn ramp([from, to]: [f64; 2], power: f64, n: usize, device: &Device) -> Tensor<1> {
    let most = n.saturating_sub(1).max(1) as f64;
    let number = |i: usize| (from + (to - from) * (i as f64 / most).powf(power)) as f32;
    let numbers: Vec<f32> = (0..n).map(number).collect();
    Tensor::from_floats(numbers.as_slice(), device)
}

/// `scale x / √(Σ x² + epsilon)` over the last dimension.
pub(super) fn unit_norm(x: Tensor<4>, scale: f64, epsilon: f64) -> Result<Tensor<4>, Error> {
    // √(Σ x² + ε) = √K √(mean x² + ε / K).
    let channels = x.dims()[3];
    let gamma = scale / (channels as f64).sqrt();
    let gamma = filled([channels], gamma, (&x.device(), x.dtype()));
    rms_norm(x, gamma, epsilon / channels as f64)
}

/// LayerNorm over the channels of each head, `[B, T, H, V]`, with numbers `gamma` and `beta` for each channel of `[B, T, H V]`.
pub(super) fn head_norm(x: Tensor<4>, norm: &LayerNorm) -> Result<Tensor<3>, Error> {
    let [batch, steps, heads, channels] = x.dims();
    let ones = filled([channels], 1.0, (&x.device(), x.dtype()));
    let y = layer_norm(x, ones, None, norm.epsilon)?;
    let y =
        y.reshape([batch, steps, heads * channels]) * every_step(norm.gamma.val(), [batch, steps]);
    Ok(match &norm.beta {
        Some(beta) => y + every_step(beta.val(), [batch, steps]),
        None => y,
    })
}
