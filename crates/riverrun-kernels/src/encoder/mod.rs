//! The state of a training run as 64 features, for a model that forecasts it
//!
//! `l` is the ring of the last losses (256), `g` of the last gradient norms (64); both sizes are set by [`Config`], 32 to 1000.
//! Means, deviations (of the population), minima and maxima are over a whole ring. `E4`, `E16`, `E64` are moving averages that
//! keep 0.75, 0.9375 and 0.984375 and start at the first value.
//!
//! | | feature | | feature |
//! | --- | --- | --- | --- |
//! | 0 | `l` now | 32 | `sign(v) log10(1 + 10⁶ \|v\|)` |
//! | 1–4 | mean, deviation, minimum, maximum of `l` | 33 | sign of 31 |
//! | 5 | mean of the last 16 − mean of the 16 before; 0 below 32 | 34 | variance of the last 16 |
//! | 6 | mean of the last 16 / max(mean of the 16 before, 1e-8); 1 below 32 | 35 | 34 / max(variance, 1e-8) |
//! | 7 | step / 10 000 | 36 | share of neighbouring changes of `l` that differ in sign, last 32 |
//! | 8 | `g` now | 37 | 36 · deviation / max(\|mean\|, 1e-8), last 32 |
//! | 9–12 | mean, deviation, minimum, maximum of `g` | 38 | (`l` − mean) / deviation |
//! | 13 | max(log10 `g`, −10) | 39 | (`l` − min) / max(max − min, 1e-8) |
//! | 14 | min(`g` / max(mean, 1e-8), 10) | 40, 41 | slope of the line through the last 32 of `l`, and its R² |
//! | 15 | deviation of `g` / max(mean, 1e-8) | 42–44 | E4, E16, E64 of `g` |
//! | 16, 17 | momentum: mean, deviation | 45 | E4 − E64 of `g` |
//! | 18, 19 | second moment: mean, deviation | 46 | slope of the line through ln max(`g`, 1e-10), last 32 |
//! | 20 | max(log10 learning rate, −10) | 47 | (`g` − mean) / deviation |
//! | 21, 22 | β₁ᵗ, β₂ᵗ | 48 | max / max(mean, 1e-8) of `g` |
//! | 23 | 0 | 49 | as 36, of `g` |
//! | 24 | phase: 0 warm-up, 1 full, 2 predict, 3 correct | 50 | max(log10 min `g`, −10) |
//! | 25 | steps in the phase / 100 | 51 | correlation of the changes of `l` with `g`, last 32 |
//! | 26–28 | E4, E16, E64 of `l` | 52, 53 | log10 of \|16\| and of 18, at least −10 |
//! | 29 | E4 − E64 of `l` | 54 | \|16\| / √(18 + 1e-8) |
//! | 30 | v = (mean of the last 8 − mean of the 8 before) / 8 | 55 | learning rate / its highest so far |
//! | 31 | (v − v of 8 steps ago) / 8 | 56 | log10 of the learning rate / that of 16 steps ago |
//! | 57 | ln(1 + step) / 10 | 58–61 | phase, one of four |
//! | 62 | predict phases in a row / 5 | 63 | relative error of the last prediction |
//!
//! **Missing history** gives 0: of everything before the first observation, and of a window that is not full. **Not finite**: an
//! input that is not finite counts as 0, and feature 63 is 10 until the next observation. **Bounds**: features 26 to 63 are
//! clamped to ±10. **Constant**: a deviation, or a difference of means, of at most 10⁻⁶ of the mean counts as 0, and so do what is
//! divided by it and slopes, so that rounding is not taken for a trend. Every feature is always finite.

mod features;
mod flat;
#[cfg(feature = "gpu")]
pub mod gpu;
mod ring;
mod scalars;
mod state_encoder;

pub use flat::{FlatStates, encode_flat};
pub use scalars::SCALARS;
pub use state_encoder::StateEncoder;

use crate::Error;

/// Features of a state.
pub const FEATURES: usize = 64;

/// Values of the windows that trends and slopes are taken from.
pub(crate) const WINDOW: usize = 32;

/// The bound of the derived features, and the mark of an input that was not finite.
pub const BOUND: f64 = 10.0;
/// Decay factors of the moving averages.
pub const KEEPS: [f64; 3] = [0.75, 0.9375, 0.984375];
/// A deviation of at most this part of the mean counts as rounding.
pub(crate) const CONSTANT: f64 = 1e-6;
/// Divisors are at least this.
pub const TINY: f64 = 1e-8;
/// Logarithms are taken of at least this.
pub const LEAST: f64 = 1e-10;

/// Sizes of the rings, and the optimiser's decays.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// Losses that are kept, 32 to 1000.
    pub losses: usize,
    /// Gradient norms that are kept, 32 to 1000.
    pub gradients: usize,
    /// Decays of Adam's moments, in (0, 1).
    pub betas: [f64; 2],
}

impl Default for Config {
    fn default() -> Self {
        Self {
            losses: 256,
            gradients: 64,
            betas: [0.9, 0.999],
        }
    }
}

impl Config {
    /// Sets the sizes of the rings.
    pub fn with_history(mut self, losses: usize, gradients: usize) -> Self {
        (self.losses, self.gradients) = (losses, gradients);
        self
    }

    /// Sets the decays.
    pub fn with_betas(mut self, betas: [f64; 2]) -> Self {
        self.betas = betas;
        self
    }

    /// Checks the sizes.
    ///
    /// # Errors
    /// [`Error::Encoder`].
    pub fn check(&self) -> Result<(), Error> {
        for (what, size) in [("losses", self.losses), ("gradient norms", self.gradients)] {
            if !(WINDOW..=1000).contains(&size) {
                let reason = format!("a ring of {size} {what}, expected 32 to 1000");
                return Err(Error::Encoder { reason });
            }
        }
        if let Some(beta) = self
            .betas
            .iter()
            .find(|beta| !(**beta > 0.0 && **beta < 1.0))
        {
            let reason = format!("a decay of {beta}, expected one between 0 and 1");
            return Err(Error::Encoder { reason });
        }
        Ok(())
    }
}

/// The phase of a training run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Phase {
    /// Collecting a baseline.
    #[default]
    WarmUp,
    /// Ordinary steps.
    Full,
    /// Steps from forecasts.
    Predict,
    /// Corrections of forecasts.
    Correct,
}

/// A step of a training run.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub struct Observation {
    /// The number of the step.
    pub step: u64,
    /// The loss.
    pub loss: f32,
    /// The norm of the gradient.
    pub gradient_norm: f32,
    /// Mean and deviation of the first moments.
    pub momentum: [f32; 2],
    /// Mean and deviation of the second moments.
    pub variance: [f32; 2],
    /// The effective learning rate.
    pub learning_rate: f32,
    /// The phase.
    pub phase: Phase,
    /// Steps since the phase began.
    pub steps_in_phase: u32,
    /// The number of predict phases in a row.
    pub predict_phases: u32,
    /// The relative error of the last forecast.
    pub prediction_error: f32,
}

impl Observation {
    /// A step with its loss, the norm of its gradient and its learning rate; the other fields are zero.
    pub fn new(step: u64, loss: f32, gradient_norm: f32, learning_rate: f32) -> Self {
        Self {
            step,
            loss,
            gradient_norm,
            learning_rate,
            ..Self::default()
        }
    }

    /// Sets the statistics of the optimiser's moments.
    pub fn with_moments(mut self, momentum: [f32; 2], variance: [f32; 2]) -> Self {
        (self.momentum, self.variance) = (momentum, variance);
        self
    }

    /// Sets the phase and the steps since it began.
    pub fn with_phase(mut self, phase: Phase, steps_in_phase: u32) -> Self {
        (self.phase, self.steps_in_phase) = (phase, steps_in_phase);
        self
    }

    /// Sets the number of predict phases in a row, and the relative error of the last forecast.
    pub fn with_prediction(mut self, predict_phases: u32, prediction_error: f32) -> Self {
        (self.predict_phases, self.prediction_error) = (predict_phases, prediction_error);
        self
    }
}
