//! The decay of a state from a step size of its own.

use burn::module::{Module, Param};
use burn::tensor::{Device, Distribution, Tensor};

use super::parts::wide;
use crate::Error;
use crate::nn::softplus::softplus;

/// `Δ_t = softplus(a_t + dt_bias)` and the logarithm of the decay, `g_t = -e^(A_log) Δ_t`, for each head: both in `f32`, or `f64`
/// for `f64`.
///
/// Source: Dao and Gu, *Transformers are SSMs* (2024), section 7; Yang et al., *Gated Delta Networks* (2024), section 3.
#[derive(Module, Debug)]
pub struct HeadDecay {
    /// `[heads]`.
    pub a_log: Param<Tensor<1>>,
    /// `[heads]`.
    pub dt_bias: Param<Tensor<1>>,
}

impl HeadDecay {
    /// Refuses steps that are not `0 < min <= max`.
    pub(super) fn check(layer: &str, min: f64, max: f64) -> Result<(), Error> {
        match 0.0 < min && min <= max && max.is_finite() {
            true => Ok(()),
            false => Err(Error::Invalid(format!(
                "{layer}: expected 0 < min_step <= max_step, found {min} and {max}"
            ))),
        }
    }

    /// `e^(A_log)` from 1 to 16, and `Δ` at `a = 0` from `min` to `max`, evenly in its logarithm.
    pub(super) fn init(heads: usize, min: f64, max: f64, device: &Device) -> Self {
        let draw = |low: f64, high: f64| {
            Tensor::<1>::random([heads], Distribution::Uniform(low, high), device)
        };
        let step = draw(min.ln(), max.ln()).exp();
        // The inverse of softplus: ln(e^Δ - 1) = Δ/2 + ln(2 sinh(Δ/2)).
        let half = step / 2.0;
        let bias = half.clone() + (half.sinh() * 2.0).log();
        Self {
            a_log: Param::from_tensor(draw(1.0, 16.0).log()),
            dt_bias: Param::from_tensor(bias),
        }
    }

    /// `Δ` and `g` from `a`, all `[B, T, heads]`.
    pub(super) fn run(&self, a: Tensor<3>) -> (Tensor<3>, Tensor<3>) {
        let row = |x: Tensor<1>| wide(x).unsqueeze::<3>();
        let step = softplus(wide(a) + row(self.dt_bias.val()));
        let decay = step.clone() * row(self.a_log.val()).exp().neg();
        (step, decay)
    }
}
