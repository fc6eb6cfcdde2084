//! Correction of a prediction by what earlier ones got wrong.

use serde::{Deserialize, Serialize};

use super::FEATURES;
use super::residuals::Residuals;

/// Weight of a residual that is 100 steps older than another, relative to it.
const AGING: f64 = 0.95;
/// Weight of the residuals of similar predictions; the rest is the linear model's.
const HISTORY: f64 = 0.7;
/// Learning rate of the linear model.
const RATE: f64 = 0.01;
/// Most that a correction changes, relative to the prediction.
const MOST: f64 = 0.2;

/// Corrects predicted losses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Corrector {
    /// A linear model of the loss residual from the features.
    weights: Vec<f64>,
}

impl Default for Corrector {
    fn default() -> Self {
        Self {
            weights: vec![0.0; FEATURES],
        }
    }
}

impl Corrector {
    /// What to add to a predicted `loss`, made at `step` with these features from a loss of `before`: 0.7 of the weighted mean
    /// of the ten most similar residuals and 0.3 of the linear model, and at most a fifth of what it corrects.
    ///
    /// A residual weighs `0.95^(age / 100) · confidence · max(cosine, 0)`.
    pub fn correct(
        &self,
        residuals: &Residuals,
        (step, features): (u64, &[f32]),
        (before, loss): (f64, f64),
    ) -> f64 {
        let (mut sum, mut total) = (0.0, 0.0);
        for (cosine, residual) in residuals.similar(features) {
            let age = step.saturating_sub(residual.step) as f64;
            let weight = AGING.powf(age / 100.0) * residual.confidence * cosine.max(0.0);
            sum += weight * residual.loss;
            total += weight;
        }
        let history = if total > 0.0 { sum / total } else { 0.0 };
        let relative = HISTORY * history + (1.0 - HISTORY) * self.predict(features);
        let most = MOST * loss.abs();
        match relative * before {
            correction if correction.is_finite() => correction.clamp(-most, most),
            _ => 0.0,
        }
    }

    /// Learns a relative loss residual: one step of normalised least mean squares.
    pub fn learn(&mut self, features: &[f32], residual: f64) {
        if !residual.is_finite() || features.iter().any(|value| !value.is_finite()) {
            return;
        }
        let error = residual.clamp(-1.0, 1.0) - self.predict(features);
        let power: f64 = features.iter().map(|value| f64::from(*value).powi(2)).sum();
        for (weight, feature) in self.weights.iter_mut().zip(features) {
            *weight += RATE * error * f64::from(*feature) / (1.0 + power / FEATURES as f64);
        }
    }

    fn predict(&self, features: &[f32]) -> f64 {
        self.weights
            .iter()
            .zip(features)
            .map(|(weight, feature)| weight * f64::from(*feature))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::residuals::tests::residual;
    use super::*;

    #[test]
    fn without_history_it_changes_nothing() {
        let features = residual(0, 0.3, 0.0).features;
        let none = Residuals::default();
        let found = Corrector::default().correct(&none, (10, &features), (2.0, 1.9));
        assert_eq!(found, 0.0);
    }

    #[test]
    fn it_is_bounded_by_a_fifth() {
        let mut store = Residuals::default();
        for step in 0..10 {
            store.add(residual(step, 0.3, 50.0));
        }
        let features = residual(0, 0.3, 0.0).features;
        let found = Corrector::default().correct(&store, (10, &features), (2.0, 1.5));
        assert!((found - 0.3).abs() < 1e-12);
    }

    #[test]
    fn opposite_situations_do_not_count() {
        let mut store = Residuals::default();
        store.add(residual(0, 0.0, 0.1));
        store.add(residual(1, std::f32::consts::PI, -5.0));
        let features = residual(0, 0.0, 0.0).features;
        let found = Corrector::default().correct(&store, (2, &features), (1.0, 1.0));
        assert!((found - 0.07).abs() < 1e-3, "{found:?}");
    }

    /// The linear model learns a residual that is linear in the features, and a broken one changes nothing.
    #[test]
    fn the_linear_model_learns() {
        let mut corrector = Corrector::default();
        for n in 0..20_000u64 {
            let angle = n as f32 * 0.7;
            corrector.learn(
                &residual(0, angle, 0.0).features,
                0.1 * f64::from(angle.cos()),
            );
        }
        let before = corrector.clone();
        corrector.learn(&[f32::NAN; FEATURES], 0.1);
        corrector.learn(&[1.0; FEATURES], f64::NAN);
        assert_eq!(corrector, before);
        let found = corrector.predict(&residual(0, 0.0, 0.0).features);
        assert!((found - 0.1).abs() < 0.02, "{found}");
    }
}
