//! The decay of a state from a step size of its own.

use burn::module::{Module, Param};
use burn::tensor::{Device, Distribution, Tensor};

use super::parts::wide;
use crate::Error;
use crate::ops::log_decay::log_decay;

/// `Δ_t = softplus(a_t + dt_bias)` and the logarithm of the decay, `g_t = -e^(A_log) Δ_t`, for each head or for each row of each
/// head's state: computed in `f32`, or `f64` for `f64`. A training run in fewer bits leaves these parameters in `f32`
/// ([`stays_wide`](crate::training::stays_wide)): a step of 1 % of a small `Δ` is less than `bf16` can tell apart.
///
/// Source: Dao and Gu, *Transformers are SSMs* (2024), section 7; Yang et al., *Gated Delta Networks* (2024), section 3.
#[derive(Module, Debug)]
pub struct HeadDecay {
    /// `[heads]`.
    pub a_log: Param<Tensor<1>>,
    /// `[heads]`, or `[heads · rows]`.
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

    /// `e^(A_log)` from 1 to 16, and `Δ` at `a = 0` from `min` to `max`, evenly in its logarithm; one `Δ` for each of a head's
    /// `rows`.
    pub(super) fn init([heads, rows]: [usize; 2], min: f64, max: f64, device: &Device) -> Self {
        let draw = |n: usize, low: f64, high: f64| {
            Tensor::<1>::random([n], Distribution::Uniform(low, high), device)
        };
        let step = draw(heads * rows, min.ln(), max.ln()).exp();
        // The inverse of softplus: ln(e^Δ - 1) = Δ/2 + ln(2 sinh(Δ/2)).
        let half = step / 2.0;
        let bias = half.clone() + (half.sinh() * 2.0).log();
        Self {
            a_log: Param::from_tensor(draw(heads, 1.0, 16.0).log()),
            dt_bias: Param::from_tensor(bias),
        }
    }

    /// `g` from `a`, both `[B, T, heads]`, or `[B, T, heads · rows]`.
    pub(super) fn run(&self, a: Tensor<3>) -> Tensor<3> {
        let [a_log, dt_bias] = self.parameters();
        log_decay(a, a_log, dt_bias, false).1
    }

    /// `Δ`, in `f32` or `f64`, and `g`.
    pub(super) fn run_with_step(&self, a: Tensor<3>) -> (Tensor<3>, Tensor<3>) {
        let [a_log, dt_bias] = self.parameters();
        let (step, g) = log_decay(a, a_log, dt_bias, true);
        (step.expect("steps are wanted"), g)
    }

    fn parameters(&self) -> [Tensor<1>; 2] {
        [&self.a_log, &self.dt_bias].map(|parameter| wide(parameter.val()))
    }
}
