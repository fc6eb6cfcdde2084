//! Divergence: signals from losses and gradient norms, levels, and the action that each level asks for.

mod baseline;
mod level;
mod recovery;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::config::HybridConfig;
use baseline::Baseline;
use level::{explosion_level, sigma_level, two_levels};

pub use level::{EXPLODING, Level, Signal};
pub use recovery::Recovery;

/// Gradient norms, in baselines, that count as vanishing.
const VANISHING: f64 = 0.01;
/// Relative errors of a predicted loss: a caution, a warning.
const PREDICTION: [f64; 2] = [0.2, 0.5];
/// Part of the successive loss differences that changes sign, from which on it is a caution. Noise alone gives two thirds.
const OSCILLATION: f64 = 0.8;
/// Losses over which sign changes are counted.
const WINDOW: usize = 32;
/// Warnings in a row that count as critical.
const PATIENCE: u32 = 3;

/// The observations of a window.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// The worst level of the signals; a third warning in a row is critical.
    pub level: Level,
    /// All signals above normal, with their levels.
    pub signals: Vec<(Signal, Level)>,
    /// Whether a loss or a gradient norm was NaN or infinite.
    pub broken: bool,
}

/// Watches a run for divergence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Monitor {
    loss: Baseline,
    gradient: Baseline,
    recent: VecDeque<f64>,
    warnings: u32,
    /// Failures of predictions since the last quiet stretch.
    failures: u32,
    /// Windows that were left out without calm between them.
    skipped: u32,
    quiet: u32,
}

/// Windows in a row without a failure after which earlier failures are forgotten.
const QUIET: u32 = 40;
/// Windows in a row without a failure after which windows that were left out are forgotten.
const CALM: u32 = 5;
/// Failures at which predictions become stricter, and the predictor is reset.
const FAILURES: [u32; 2] = [2, 3];
/// Windows left out without calm between them at which the run is stopped.
const SKIPPED: u32 = 6;

impl Default for Monitor {
    fn default() -> Self {
        Self {
            loss: Baseline::default(),
            gradient: Baseline::default(),
            recent: VecDeque::with_capacity(WINDOW),
            warnings: 0,
            failures: 0,
            skipped: 0,
            quiet: 0,
        }
    }
}

impl Monitor {
    /// Looks at a window's losses and gradient norms, and at the relative error of the loss that was predicted, where one
    /// was. The mean of the losses is what counts, in standard deviations of one loss.
    pub fn observe(
        &mut self,
        config: &HybridConfig,
        losses: &[f64],
        gradients: &[f64],
        prediction_error: Option<f64>,
    ) -> Finding {
        let mut signals = Vec::new();
        let broken = losses
            .iter()
            .chain(gradients)
            .any(|value| !value.is_finite());
        if broken {
            signals.push((Signal::NotFinite, Level::Critical));
        }
        if !broken && !losses.is_empty() && self.loss.ready() {
            let mean = losses.iter().sum::<f64>() / losses.len() as f64;
            let sigma = (mean - self.loss.mean) / self.loss.variance.sqrt().max(1e-8);
            signals.push((Signal::Loss, sigma_level(sigma / config.sigma)));
        }
        if !broken && self.gradient.ready() {
            let most = gradients.iter().copied().fold(0.0, f64::max);
            let ratio = most / self.gradient.mean.max(1e-30);
            signals.push((Signal::Explosion, explosion_level(ratio)));
            if ratio < VANISHING && !gradients.is_empty() {
                signals.push((Signal::Vanishing, Level::Caution));
            }
        }
        if let Some(error) = prediction_error {
            let level = match error.is_finite() {
                true => two_levels(error, PREDICTION),
                false => Level::Warning,
            };
            signals.push((Signal::Prediction, level));
        }
        if !broken {
            losses.iter().for_each(|loss| self.remember(*loss));
            if self.sign_changes() >= OSCILLATION {
                signals.push((Signal::Oscillation, Level::Caution));
            }
        }
        signals.retain(|(_, level)| *level > Level::Normal);
        let worst = signals.iter().map(|(_, level)| *level).max();
        let mut level = worst.unwrap_or(Level::Normal);
        self.warnings = if level >= Level::Warning {
            self.warnings + 1
        } else {
            0
        };
        if self.warnings >= PATIENCE {
            level = Level::Critical;
        }
        // A diverging loss must not become the baseline that it is compared with.
        if !broken && level < Level::Warning {
            losses.iter().for_each(|loss| self.loss.add(*loss));
            gradients.iter().for_each(|norm| self.gradient.add(*norm));
        }
        Finding {
            level,
            signals,
            broken,
        }
    }

    /// The action for a finding. `testing` says that a prediction is being measured, so that weights from before it are there
    /// to return to; `harmful` that the loss after it is worse than before.
    ///
    /// Without a prediction, numbers that are not finite are all that weights are restored for: a high loss is training's own
    /// affair.
    pub fn recovery(&mut self, finding: &Finding, testing: bool, harmful: bool) -> Recovery {
        let failed = finding.broken || testing && (harmful || finding.level == Level::Critical);
        if !failed {
            self.quiet += 1;
            if self.quiet >= CALM {
                self.skipped = 0;
            }
            if self.quiet >= QUIET {
                (self.failures, self.quiet) = (0, 0);
            }
            return match finding.level {
                Level::Normal => Recovery::Continue,
                Level::Caution => Recovery::ReducePredictions,
                Level::Warning | Level::Critical => Recovery::ForceFull,
            };
        }
        (self.quiet, self.warnings) = (0, 0);
        if !testing {
            self.skipped += 1;
            return match self.skipped >= SKIPPED {
                true => Recovery::Abort,
                false => Recovery::SkipBatch,
            };
        }
        self.failures += 1;
        match self.failures {
            n if n >= FAILURES[1] => Recovery::ResetPredictor,
            n if n >= FAILURES[0] => Recovery::RaiseConfidence,
            _ => Recovery::RollBack,
        }
    }

    /// Failures of predictions since the last quiet stretch.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// The gradient norm's baseline; 0 before the first.
    pub fn usual_gradient(&self) -> f64 {
        self.gradient.mean
    }

    fn remember(&mut self, loss: f64) {
        if self.recent.len() == WINDOW {
            self.recent.pop_front();
        }
        self.recent.push_back(loss);
    }

    /// The part of successive differences that change sign; 0 before the window is full.
    fn sign_changes(&self) -> f64 {
        if self.recent.len() < WINDOW {
            return 0.0;
        }
        let losses: Vec<f64> = self.recent.iter().copied().collect();
        let differences: Vec<f64> = losses.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let changes = differences
            .windows(2)
            .filter(|pair| pair[0] * pair[1] < 0.0);
        changes.count() as f64 / (differences.len() - 1) as f64
    }
}
