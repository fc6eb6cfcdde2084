//! Divergence: signals from losses and gradient norms, levels, and the action that each level asks for.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::config::HybridConfig;

/// Observations from which the baselines start.
const BASELINE: u64 = 50;
/// Part of a baseline that an observation leaves in place after that.
const KEEP: f64 = 0.99;
/// Gradient norms, in baselines, that count as exploding; ten times as much is critical.
pub const EXPLODING: f64 = 100.0;
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

/// How bad things are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Nothing to see.
    #[default]
    Normal,
    /// Predictions become shorter.
    Caution,
    /// No prediction before the next full phases.
    Warning,
    /// If a prediction is being measured, it is to be taken back.
    Critical,
}

/// A reason for a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Signal {
    /// The loss is far above its baseline.
    Loss,
    /// The gradient norm is far above its baseline.
    Explosion,
    /// The gradient norm is far below its baseline.
    Vanishing,
    /// The loss or the gradient norm is NaN or infinite.
    NotFinite,
    /// The predicted loss was wrong.
    Prediction,
    /// The loss goes up and down at every step.
    Oscillation,
}

/// The answer to a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recovery {
    /// Go on.
    Continue,
    /// Halve the length of predictions for a while.
    ReducePredictions,
    /// Train two full phases before the next prediction.
    ForceFull,
    /// Restore the weights from before the last prediction, and train.
    RollBack,
    /// As that, and ask for more confidence from now on.
    RaiseConfidence,
    /// As that, and forget what the predictor has learned.
    ResetPredictor,
    /// Restore the weights from before this window, and leave its batches out: nothing was predicted.
    SkipBatch,
    /// Stop the run with its last good checkpoint.
    Abort,
}

impl Recovery {
    /// Whether weights and moments are restored.
    pub fn restores(self) -> bool {
        matches!(
            self,
            Self::RollBack | Self::RaiseConfidence | Self::ResetPredictor | Self::SkipBatch
        )
    }
}

/// What was seen in a window.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// The worst level of the signals; a third warning in a row is critical.
    pub level: Level,
    /// All signals above normal, with their levels.
    pub signals: Vec<(Signal, Level)>,
    /// Whether a loss or a gradient norm was NaN or infinite.
    pub broken: bool,
}

/// Running mean and deviation: exact over the first [`BASELINE`] observations, exponential after them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct Baseline {
    count: u64,
    mean: f64,
    variance: f64,
}

impl Baseline {
    fn add(&mut self, value: f64) {
        self.count += 1;
        let keep = if self.count <= BASELINE {
            1.0 - 1.0 / self.count as f64
        } else {
            KEEP
        };
        let off = value - self.mean;
        self.mean += (1.0 - keep) * off;
        self.variance = keep * (self.variance + (1.0 - keep) * off * off);
    }

    fn ready(&self) -> bool {
        self.count >= BASELINE
    }
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

/// Levels at 0.7, 1 and 2 thresholds.
fn sigma_level(thresholds: f64) -> Level {
    match thresholds {
        t if t >= 2.0 => Level::Critical,
        t if t >= 1.0 => Level::Warning,
        t if t >= 0.7 => Level::Caution,
        _ => Level::Normal,
    }
}

fn explosion_level(ratio: f64) -> Level {
    match ratio {
        r if r >= 10.0 * EXPLODING => Level::Critical,
        r if r >= EXPLODING => Level::Warning,
        _ => Level::Normal,
    }
}

fn two_levels(value: f64, [caution, warning]: [f64; 2]) -> Level {
    match value {
        v if v >= warning => Level::Warning,
        v if v >= caution => Level::Caution,
        _ => Level::Normal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A monitor that has seen 60 losses around 2 with a deviation of about 0.1, falling and rising slowly.
    fn settled() -> (HybridConfig, Monitor) {
        let (config, mut monitor) = (HybridConfig::default(), Monitor::default());
        for step in 0..60 {
            let loss = 2.0 + 0.14 * (f64::from(step) / 5.0).sin();
            let finding = monitor.observe(&config, &[loss], &[1.0], None);
            assert_eq!(finding.level, Level::Normal, "{finding:?}");
        }
        (config, monitor)
    }

    #[test]
    fn levels_of_the_loss() {
        for (loss, level) in [
            (2.1, Level::Normal),
            (2.0 + 0.1 * 2.4, Level::Caution),
            (2.0 + 0.1 * 4.0, Level::Warning),
            (2.0 + 0.1 * 8.0, Level::Critical),
            (0.1, Level::Normal),
            (f64::NAN, Level::Critical),
            (f64::INFINITY, Level::Critical),
        ] {
            let (config, mut monitor) = settled();
            let found = monitor.observe(&config, &[loss], &[1.0], None);
            assert_eq!(found.level, level, "{loss}: {found:?}");
            assert_eq!(found.broken, !loss.is_finite());
        }
    }

    #[test]
    fn levels_of_gradients_and_predictions() {
        for (gradient, error, level) in [
            (1.0, None, Level::Normal),
            (150.0, None, Level::Warning),
            (1500.0, None, Level::Critical),
            (1e-3, None, Level::Caution),
            (f64::NAN, None, Level::Critical),
            (1.0, Some(0.1), Level::Normal),
            (1.0, Some(0.3), Level::Caution),
            (1.0, Some(0.6), Level::Warning),
            (1.0, Some(f64::NAN), Level::Warning),
        ] {
            let (config, mut monitor) = settled();
            let found = monitor.observe(&config, &[2.0], &[gradient], error);
            assert_eq!(found.level, level, "{gradient} {error:?}: {found:?}");
        }
    }

    #[test]
    fn an_oscillating_loss_is_a_caution() {
        let (config, mut monitor) = (HybridConfig::default(), Monitor::default());
        let mut last = Level::Normal;
        for step in 0..40 {
            let loss = 2.0 + if step % 2 == 0 { 0.1 } else { -0.1 };
            last = monitor.observe(&config, &[loss], &[], None).level;
        }
        assert_eq!(last, Level::Caution);
    }

    #[test]
    fn the_third_warning_in_a_row_is_critical() {
        let (config, mut monitor) = settled();
        let mut level = || monitor.observe(&config, &[2.4], &[1.0], None).level;
        assert_eq!(
            [level(), level(), level()],
            [Level::Warning, Level::Warning, Level::Critical]
        );
    }

    #[test]
    fn a_diverging_loss_does_not_move_its_baseline() {
        let (config, mut monitor) = settled();
        let before = (monitor.loss, monitor.gradient);
        for _ in 0..100 {
            monitor.observe(&config, &[1e6], &[1e9], None);
            monitor.observe(&config, &[f64::NAN], &[f64::NAN], None);
        }
        assert_eq!((monitor.loss, monitor.gradient), before);
    }

    #[test]
    fn recoveries_escalate() {
        use Recovery::*;
        let recoveries = |testing: bool, loss: f64| {
            let (config, mut monitor) = settled();
            let mut next = || {
                let finding = monitor.observe(&config, &[loss], &[], None);
                monitor.recovery(&finding, testing, false)
            };
            [next(), next(), next(), next(), next(), next()]
        };
        let rest = ResetPredictor;
        let taken_back = [RollBack, RaiseConfidence, rest, rest, rest, rest];
        assert_eq!(recoveries(true, f64::NAN), taken_back);
        assert_eq!(recoveries(true, 1e6), taken_back);
        let [skipped @ .., last] = recoveries(false, f64::NAN);
        assert_eq!((skipped, last), ([SkipBatch; 5], Abort));
        assert_eq!(recoveries(false, 1e6), [ForceFull; 6]);
        assert_eq!(recoveries(true, 2.24)[0], ReducePredictions);
        assert_eq!(recoveries(true, 2.0), [Continue; 6]);

        let (config, mut monitor) = settled();
        let finding = monitor.observe(&config, &[2.0], &[], None);
        assert_eq!(monitor.recovery(&finding, true, true), RollBack);
        assert_eq!(monitor.failures(), 1);
        for _ in 0..QUIET {
            monitor.recovery(&finding, false, false);
        }
        assert_eq!(monitor.failures(), 0);
    }
}
