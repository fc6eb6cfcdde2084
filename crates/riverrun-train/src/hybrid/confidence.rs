//! Confidence in the next prediction.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Errors that are kept.
const KEPT: usize = 50;
/// Errors before the history counts for itself.
const ENOUGH: usize = 10;
/// Part of the mean error of forecasts that stays at each window.
const KEEP: f64 = 0.9;
/// Keep factors of the fast and the slow average of the loss.
const FAST: f64 = 0.75;
const SLOW: f64 = 0.984375;

/// Confidence from three sources: how well the predictor agrees with itself, how right it has been, and how steady the loss
/// is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Confidence {
    errors: VecDeque<f64>,
    /// Mean relative error of losses forecast over windows of real steps.
    #[serde(default)]
    forecast: Option<f64>,
    fast: Option<f64>,
    slow: Option<f64>,
    /// Added to the threshold after failures; decays with each success.
    strictness: f64,
}

impl Confidence {
    /// Takes in the loss of a real step.
    pub fn observe_loss(&mut self, loss: f64) {
        if !loss.is_finite() {
            return;
        }
        let mix = |average: &mut Option<f64>, keep: f64| {
            let before = average.unwrap_or(loss);
            *average = Some(keep * before + (1.0 - keep) * loss);
        };
        mix(&mut self.fast, FAST);
        mix(&mut self.slow, SLOW);
    }

    /// Takes in the relative error of the loss that was forecast for a window of real steps.
    pub fn observe_forecast(&mut self, error: f64) {
        let error = if error.is_finite() { error.abs() } else { 1.0 };
        let before = self.forecast.unwrap_or(error);
        self.forecast = Some(KEEP * before + (1.0 - KEEP) * error);
    }

    /// Takes in the relative error of a predicted loss.
    pub fn observe_error(&mut self, error: f64) {
        if self.errors.len() == KEPT {
            self.errors.pop_front();
        }
        // A prediction whose loss was not a number is as wrong as one that is off by its own size.
        let error = if error.is_finite() { error.abs() } else { 1.0 };
        self.errors.push_back(error);
        if error < 0.2 {
            self.strictness *= 0.9;
        }
    }

    /// Asks for more confidence from now on.
    pub fn raise(&mut self) {
        self.strictness = (self.strictness + 0.05).min(0.3);
    }

    /// Forgets the errors of a predictor that was reset.
    pub fn forget(&mut self) {
        self.errors.clear();
    }

    /// The confidence in a prediction whose members, or directions, agree by `agreement`, 0 to 1:
    /// `0.4 agreement + 0.4 history + 0.2 steadiness`, less what failures have added to the threshold.
    ///
    /// The history is `1 / (1 + mean error)` of the losses predicted, at most 0.99. As long as fewer than 10 are known, the
    /// error of the losses that were forecast over windows of real steps stands in for those that are missing: without it a
    /// run that has predicted nothing could never begin to. The steadiness is
    /// `1 / (1 + 2 |fast - slow| / |slow|)` of two exponential averages of the loss, at least 0.5.
    pub fn of(&self, agreement: f64) -> f64 {
        if !agreement.is_finite() {
            return 0.0;
        }
        let agreement = agreement.clamp(0.0, 1.0);
        let missing = ENOUGH.saturating_sub(self.errors.len());
        let history = match self.forecast {
            None if missing > 0 => agreement,
            forecast => {
                let forecasts = missing as f64 * forecast.unwrap_or(0.0);
                let sum = self.errors.iter().sum::<f64>() + forecasts;
                let mean = sum / (self.errors.len() + missing) as f64;
                (1.0 / (1.0 + mean)).min(0.99)
            }
        };
        let steadiness = match (self.fast, self.slow) {
            (Some(fast), Some(slow)) => {
                (1.0 / (1.0 + 2.0 * (fast - slow).abs() / slow.abs().max(1e-12))).max(0.5)
            }
            _ => 0.5,
        };
        let sure = 0.4 * agreement + 0.4 * history + 0.2 * steadiness;
        (sure - self.strictness).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_history_it_is_the_weighted_sum() {
        let mut confidence = Confidence::default();
        confidence.observe_loss(2.0);
        let expected = 0.8 * 0.5 + 0.2;
        assert!((confidence.of(0.5) - expected).abs() < 1e-12);
        assert_eq!(confidence.of(f64::NAN), 0.0);
    }

    #[test]
    fn forecasts_stand_in_for_predictions_that_are_missing() {
        let mut confidence = Confidence::default();
        confidence.observe_loss(2.0);
        confidence.observe_forecast(0.25);
        let expected = 0.4 * 0.5 + 0.4 * 0.8 + 0.2;
        assert!((confidence.of(0.5) - expected).abs() < 1e-12);
        // Half of the ten are predictions that were wrong by their own size.
        (0..ENOUGH / 2).for_each(|_| confidence.observe_error(1.0));
        let expected = 0.4 * 0.5 + 0.4 / (1.0 + 0.625) + 0.2;
        assert!((confidence.of(0.5) - expected).abs() < 1e-12);
        (0..ENOUGH / 2).for_each(|_| confidence.observe_error(1.0));
        confidence.observe_forecast(0.0);
        let expected = 0.4 * 0.5 + 0.4 * 0.5 + 0.2;
        assert!((confidence.of(0.5) - expected).abs() < 1e-12);
    }

    #[test]
    fn errors_lower_it_and_successes_restore_it() {
        let mut confidence = Confidence::default();
        confidence.observe_loss(1.0);
        let before = confidence.of(0.9);
        (0..KEPT).for_each(|_| confidence.observe_error(f64::NAN));
        let wrong = confidence.of(0.9);
        assert!(wrong < before);
        confidence.raise();
        assert!(confidence.of(0.9) < wrong);
        (0..KEPT).for_each(|_| confidence.observe_error(0.001));
        assert!(confidence.of(0.9) > before);
    }

    #[test]
    fn an_unsteady_loss_lowers_it() {
        let (mut steady, mut falling) = (Confidence::default(), Confidence::default());
        for step in 0..100 {
            steady.observe_loss(1.0);
            falling.observe_loss(10.0 / f64::from(step + 1));
        }
        assert!(falling.of(1.0) < steady.of(1.0));
        falling.observe_loss(f64::NAN);
        assert!(falling.of(1.0).is_finite());
    }
}
