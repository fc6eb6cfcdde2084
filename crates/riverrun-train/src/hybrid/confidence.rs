//! Confidence in the next prediction.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Errors that are kept.
const KEPT: usize = 50;
/// Errors before the history counts for itself.
const ENOUGH: usize = 10;
/// Keep factors of the fast and the slow average of the loss.
const FAST: f64 = 0.75;
const SLOW: f64 = 0.984375;

/// Confidence from three sources: how well the predictor agrees with itself, how right it has been, and how steady the loss
/// is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Confidence {
    errors: VecDeque<f64>,
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
    /// The history is `1 / (1 + mean error)`, at most 0.99; before 10 errors are known, the agreement, which is measured too,
    /// stands in for it. The steadiness is
    /// `1 / (1 + 2 |fast - slow| / |slow|)` of two exponential averages of the loss, at least 0.5.
    pub fn of(&self, agreement: f64) -> f64 {
        if !agreement.is_finite() {
            return 0.0;
        }
        let agreement = agreement.clamp(0.0, 1.0);
        let history = if self.errors.len() < ENOUGH {
            agreement
        } else {
            let mean = self.errors.iter().sum::<f64>() / self.errors.len() as f64;
            (1.0 / (1.0 + mean)).min(0.99)
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
