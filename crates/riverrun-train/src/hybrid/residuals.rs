//! Errors of earlier predictions, found again by the situation in which they were made.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::FEATURES;

/// Most residuals that are kept.
const MOST: usize = 1000;
/// Residuals that a correction is made from.
const SIMILAR: usize = 10;

/// The error of one prediction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Residual {
    /// The step at which the prediction was made.
    pub step: u64,
    /// The features of the training state then.
    pub features: Vec<f32>,
    /// Confidence of the prediction, 0 to 1.
    pub confidence: f64,
    /// Measured loss less predicted loss, relative to the loss before the prediction.
    pub loss: f64,
}

/// The last residuals, at most 1000.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Residuals {
    kept: VecDeque<Residual>,
}

impl Residuals {
    /// Adds one, in the place of the oldest where the store is full. One that is not finite is dropped.
    pub fn add(&mut self, residual: Residual) {
        let finite = residual.loss.is_finite()
            && residual.confidence.is_finite()
            && residual.features.iter().all(|value| value.is_finite());
        if !finite || residual.features.len() != FEATURES {
            return;
        }
        if self.kept.len() == MOST {
            self.kept.pop_front();
        }
        self.kept.push_back(residual);
    }

    /// The ten most similar by the cosine of their features, the most similar first; later ones first among equals.
    pub fn similar(&self, features: &[f32]) -> Vec<(f64, &Residual)> {
        let mut found: Vec<(f64, &Residual)> = self
            .kept
            .iter()
            .map(|residual| (cosine(features, &residual.features), residual))
            .collect();
        found.sort_by(|(a, one), (b, two)| b.total_cmp(a).then(two.step.cmp(&one.step)));
        found.truncate(SIMILAR);
        found
    }
}

/// The cosine of the angle between two vectors; 0 where one has no length.
pub(crate) fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter()
            .zip(b)
            .map(|(a, b)| f64::from(*a) * f64::from(*b))
            .sum()
    };
    let length = (dot(a, a) * dot(b, b)).sqrt();
    if length > 0.0 {
        dot(a, b) / length
    } else {
        0.0
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A residual whose features point in a direction of the plane.
    pub(crate) fn residual(step: u64, angle: f32, loss: f64) -> Residual {
        let mut features = vec![0.0; FEATURES];
        (features[0], features[1]) = (angle.cos(), angle.sin());
        Residual {
            step,
            features,
            confidence: 1.0,
            loss,
        }
    }

    #[test]
    fn the_most_similar_come_first() {
        let mut store = Residuals::default();
        for step in 0..40 {
            store.add(residual(step, step as f32 * 0.05, 0.0));
        }
        let found = store.similar(&residual(0, 1.0, 0.0).features);
        assert_eq!(found.len(), SIMILAR);
        assert_eq!(found[0].1.step, 20);
        assert!(found.windows(2).all(|pair| pair[0].0 >= pair[1].0));
    }

    #[test]
    fn the_store_is_bounded_and_clean() {
        let mut store = Residuals::default();
        for step in 0..1500 {
            store.add(residual(step, 0.1, 0.0));
        }
        assert_eq!(store.kept.len(), MOST);
        assert_eq!(store.kept[0].step, 500);
        store.kept.clear();
        store.add(residual(0, 0.1, f64::NAN));
        store.add(residual(0, f32::NAN, 0.0));
        let mut short = residual(0, 0.1, 0.0);
        short.features.pop();
        store.add(short);
        assert!(store.kept.is_empty());
        assert!(store.similar(&[0.0; FEATURES]).is_empty());
    }
}
