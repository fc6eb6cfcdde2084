//! The mean of the last weights.

use super::Predictor;
use crate::hybrid::observation::{Observation, WINDOWS};

/// Puts the mean of the weights now and at the ends of the last windows in the place of the weights. It learns nothing, and
/// does not claim to be the next update, so it is not judged by it.
///
/// Source: Kaddour, *Stop wasting my time! Saving days of ImageNet and BERT training with latest weight averaging* (2022), section 2.
#[derive(Debug, Clone, Copy, Default)]
pub struct Average;

impl Predictor for Average {
    /// The weights `w` at the end of a window are those before the window and its update `U`, so the mean of `w`, `w - U_4`,
    /// `w - U_4 - U_3`, … is `w - (4 U_4 + 3 U_3 + 2 U_2 + U_1) / 5`.
    fn predict(&self, seen: &Observation, _: f64) -> Vec<[f64; WINDOWS]> {
        let part = |update: usize| -((update + 1) as f64) / (WINDOWS + 1) as f64;
        let weights = std::array::from_fn(part);
        seen.groups
            .iter()
            .map(|gram| match gram.usable() {
                true => weights,
                false => [0.0; WINDOWS],
            })
            .collect()
    }

    fn is_judged(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::observation::tests::observation;
    use super::*;

    #[test]
    fn it_is_the_mean_of_the_last_weights() {
        let updates = [[1.0, 0.5], [-2.0, 1.0], [0.25, 0.0], [0.5, -1.0]];
        let mut points = vec![[0.0; 2]];
        for update in updates {
            let last = points[points.len() - 1];
            points.push([last[0] + update[0], last[1] + update[1]]);
        }
        let weights = Average.predict(&observation(updates), 3.0)[0];
        for k in 0..2 {
            let mean = points.iter().map(|point| point[k]).sum::<f64>() / 5.0;
            let moved: f64 = weights.iter().zip(updates).map(|(w, u)| w * u[k]).sum();
            assert!((points[4][k] + moved - mean).abs() < 1e-12);
        }
    }
}
