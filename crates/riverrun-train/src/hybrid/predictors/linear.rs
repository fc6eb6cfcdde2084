//! Ridge regression from the features of the training state.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Predictor, continue_mean};
use crate::hybrid::FEATURES;
use crate::hybrid::observation::{Observation, WINDOWS};

/// Weight of the penalty on the weights.
const PENALTY: f64 = 0.01;
/// Step of the normalised gradient descent.
const RATE: f64 = 0.1;

/// Predicts, for each layer group, the multiple of its recent mean update that the next window adds: a linear function of the
/// 64 features, learned window by window by normalised gradient descent with an L2 penalty of 0.01.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Linear {
    /// One row of weights, then a bias, for each group.
    groups: Vec<Vec<f64>>,
}

impl Linear {
    fn multiples(&self, seen: &Observation) -> Vec<f64> {
        let row = |group: usize| match self.groups.get(group) {
            Some(row) => row[FEATURES] + dot(row, &seen.features),
            None => 1.0,
        };
        (0..seen.groups.len()).map(row).collect()
    }
}

impl Predictor for Linear {
    fn predict(&self, seen: &Observation, windows: f64) -> Vec<[f64; WINDOWS]> {
        continue_mean(seen, windows, &self.multiples(seen))
    }

    fn learn(&mut self, before: &Observation, after: &Observation) {
        let found = after.continued();
        if before.features.iter().any(|value| !value.is_finite()) {
            return;
        }
        let mut start = vec![0.0; FEATURES + 1];
        start[FEATURES] = 1.0;
        self.groups.resize(found.len(), start);
        let predicted = self.multiples(before);
        let power = 1.0
            + before
                .features
                .iter()
                .map(|x| f64::from(*x).powi(2))
                .sum::<f64>();
        for ((row, predicted), found) in self.groups.iter_mut().zip(&predicted).zip(&found) {
            let step = RATE * (found - predicted) / power;
            for (weight, feature) in row.iter_mut().zip(&before.features) {
                *weight = (1.0 - RATE * PENALTY) * *weight + step * f64::from(*feature);
            }
            row[FEATURES] += step;
        }
    }

    fn reset(&mut self) {
        *self = Self::default();
    }

    fn save(&self) -> Value {
        serde_json::to_value(self).expect("numbers are JSON")
    }

    fn load(&mut self, saved: Value) -> Result<(), String> {
        *self = serde_json::from_value(saved).map_err(|error| error.to_string())?;
        Ok(())
    }
}

fn dot(row: &[f64], features: &[f32]) -> f64 {
    row.iter()
        .zip(features)
        .map(|(weight, feature)| weight * f64::from(*feature))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::super::super::observation::tests::observation;
    use super::*;

    #[test]
    fn it_learns_a_constant_slowdown() {
        let mut linear = Linear::default();
        let seen = observation([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.5, 0.0]]);
        (0..200).for_each(|_| linear.learn(&seen, &seen));
        let multiple = linear.multiples(&seen)[0];
        assert!((multiple - 0.5).abs() < 0.02, "{multiple}");
        let mut copy = Linear::default();
        copy.load(linear.save()).unwrap();
        assert_eq!(copy, linear);
        linear.reset();
        assert_eq!(linear, Linear::default());
        assert!(copy.load(Value::from(3)).is_err());
    }

    #[test]
    fn broken_features_teach_nothing() {
        let mut linear = Linear::default();
        let mut seen = observation([[1.0, 0.0]; 4]);
        seen.features[3] = f32::NAN;
        linear.learn(&seen, &seen);
        assert_eq!(linear, Linear::default());
    }
}
