//! Correction of a prediction by what earlier ones got wrong.

use serde::{Deserialize, Serialize};

use super::FEATURES;
use super::residuals::{Residual, Residuals};

/// Weight of a residual that is 100 steps older than another, relative to it.
const AGING: f64 = 0.95;
/// Weight of the residuals of similar predictions; the rest is the linear model's.
const HISTORY: f64 = 0.7;
/// Learning rate of the linear model.
const RATE: f64 = 0.01;
/// Most that a correction changes, relative to the prediction.
const MOST: f64 = 0.2;

/// Corrects one kind of prediction, of the loss or of the lengths by layer group: by the errors of similar ones, and by a
/// linear model of the errors.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Corrector {
    residuals: Residuals,
    /// A linear model of each error from the features.
    rows: Vec<Vec<f64>>,
}

/// A situation in which something is predicted.
#[derive(Debug, Clone, Copy)]
pub struct Situation<'a> {
    /// Steps done.
    pub step: u64,
    /// The features of the training state.
    pub features: &'a [f32],
}

impl Corrector {
    /// The expected relative errors of `count` predictions: 0.7 of the weighted mean of the ten most similar residuals, where
    /// `history` counts, and 0.3 of the linear model.
    ///
    /// A residual weighs `0.95^(age / 100) · confidence · max(cosine, 0)`.
    fn errors(&self, count: usize, at: Situation<'_>, history: bool) -> Vec<f64> {
        let (mut sums, mut total) = (vec![0.0; count], 0.0);
        let similar = match history {
            true => self.residuals.similar(at.features),
            false => Vec::new(),
        };
        for found in similar.iter().filter(|found| found.errors.len() == count) {
            let age = at.step.saturating_sub(found.step) as f64;
            let weight = AGING.powf(age / 100.0) * found.confidence * found.cosine.max(0.0);
            for (sum, error) in sums.iter_mut().zip(found.errors) {
                *sum += weight * error;
            }
            total += weight;
        }
        let learned = self.learned(count, at.features);
        sums.iter()
            .zip(learned)
            .map(|(sum, learned)| {
                let similar = if total > 0.0 { sum / total } else { 0.0 };
                HISTORY * similar + (1.0 - HISTORY) * learned
            })
            .collect()
    }

    /// The correction to add to a predicted `loss`, from a loss of `before`: at most a fifth of it. Errors are relative to
    /// the loss before.
    pub fn of_loss(&self, at: Situation<'_>, history: bool, (before, loss): (f64, f64)) -> f64 {
        let most = MOST * loss.abs();
        match self.errors(1, at, history)[0] * before {
            correction if correction.is_finite() => correction.clamp(-most, most),
            _ => 0.0,
        }
    }

    /// The factor for the predicted change of each layer group, from 0.8 to 1.2. Errors are relative to the predicted
    /// lengths.
    pub fn of_lengths(&self, at: Situation<'_>, history: bool, groups: usize) -> Vec<f64> {
        let factor = |error: f64| match error.is_finite() {
            true => 1.0 + error.clamp(-MOST, MOST),
            false => 1.0,
        };
        let errors = self.errors(groups, at, history);
        errors.into_iter().map(factor).collect()
    }

    /// Learns the relative errors of a prediction: keeps them, and takes one step of normalised least mean squares for each.
    /// Those that are not finite teach nothing.
    pub fn learn(&mut self, residual: Residual) {
        let finite = residual.errors.iter().all(|error| error.is_finite());
        if !finite || residual.features.iter().any(|value| !value.is_finite()) {
            return;
        }
        let features = &residual.features;
        let count = residual.errors.len();
        self.rows.resize(count, vec![0.0; FEATURES]);
        let learned = self.learned(count, features);
        let power: f64 = features.iter().map(|value| f64::from(*value).powi(2)).sum();
        let rate = RATE / (1.0 + power / FEATURES as f64);
        for ((row, learned), found) in self.rows.iter_mut().zip(learned).zip(&residual.errors) {
            let error = found.clamp(-1.0, 1.0) - learned;
            for (weight, feature) in row.iter_mut().zip(features) {
                *weight += rate * error * f64::from(*feature);
            }
        }
        self.residuals.add(residual);
    }

    /// The estimate of the linear model.
    fn learned(&self, count: usize, features: &[f32]) -> Vec<f64> {
        let of = |row: &Vec<f64>| {
            let products = row.iter().zip(features);
            products.map(|(weight, x)| weight * f64::from(*x)).sum()
        };
        let row = |k: usize| self.rows.get(k).map_or(0.0, of);
        (0..count).map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::residuals::tests::residual;
    use super::*;

    fn at(step: u64, features: &[f32]) -> Situation<'_> {
        Situation { step, features }
    }

    #[test]
    fn without_history_it_changes_nothing() {
        let features = residual(0, 0.3, 0.0).features;
        let corrector = Corrector::default();
        assert_eq!(corrector.of_loss(at(10, &features), true, (2.0, 1.9)), 0.0);
        assert_eq!(corrector.of_lengths(at(10, &features), true, 3), [1.0; 3]);
    }

    #[test]
    fn it_is_bounded_by_a_fifth() {
        let mut corrector = Corrector::default();
        for step in 0..10 {
            corrector.learn(residual(step, 0.3, 50.0));
        }
        let features = residual(0, 0.3, 0.0).features;
        let found = corrector.of_loss(at(10, &features), true, (2.0, 1.5));
        assert!((found - 0.3).abs() < 1e-12);
        let found = corrector.of_lengths(at(10, &features), true, 1);
        assert!((found[0] - 1.2).abs() < 1e-12);
    }

    /// Each layer group is corrected by its own errors.
    #[test]
    fn lengths_are_corrected_by_group() {
        let mut corrector = Corrector::default();
        let features = residual(0, 0.3, 0.0).features;
        for step in 0..50 {
            let mut residual = residual(step, 0.3, 0.0);
            residual.errors = vec![-0.1, 0.0, 0.15];
            corrector.learn(residual);
        }
        let found = corrector.of_lengths(at(50, &features), true, 3);
        for (found, expected) in found.iter().zip([0.9, 1.0, 1.15]) {
            assert!((found - expected).abs() < 0.05, "{found} {expected}");
        }
        // Errors of another model's groups do not count.
        assert_eq!(corrector.of_lengths(at(50, &features), true, 2).len(), 2);
    }

    #[test]
    fn opposite_situations_do_not_count() {
        let mut corrector = Corrector::default();
        corrector.residuals.add(residual(0, 0.0, 0.1));
        let far = residual(1, std::f32::consts::PI, -5.0);
        corrector.residuals.add(far);
        let features = residual(0, 0.0, 0.0).features;
        let found = corrector.of_loss(at(2, &features), true, (1.0, 1.0));
        assert!((found - 0.07).abs() < 1e-3, "{found:?}");
        // Without the store, nothing is left: the linear model has learned nothing.
        let found = corrector.of_loss(at(2, &features), false, (1.0, 1.0));
        assert_eq!(found, 0.0);
    }

    /// The linear model learns an error that is linear in the features, and a broken one changes nothing.
    #[test]
    fn the_linear_model_learns() {
        let mut corrector = Corrector::default();
        for n in 0..20_000u64 {
            let angle = n as f32 * 0.7;
            corrector.learn(residual(n, angle, 0.1 * f64::from(angle.cos())));
        }
        let before = corrector.clone();
        corrector.learn(residual(0, f32::NAN, 0.1));
        corrector.learn(residual(0, 0.0, f64::NAN));
        assert_eq!(corrector, before);
        let found = corrector.learned(1, &residual(0, 0.0, 0.0).features)[0];
        assert!((found - 0.1).abs() < 0.02, "{found}");
    }
}
