//! The last update, continued: momentum without a gradient.

use super::Predictor;
use crate::hybrid::observation::{LAST, Observation, WINDOWS};

/// Adds the last window's update once for each window to come, scaled as the learning rate changes. Learns nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct LastUpdate;

impl Predictor for LastUpdate {
    fn predict(&self, seen: &Observation, windows: f64) -> Vec<[f64; WINDOWS]> {
        let total = windows * seen.lr_ratio;
        seen.groups
            .iter()
            .map(|gram| match gram.usable() {
                true => LAST.map(|weight| weight * total),
                false => [0.0; WINDOWS],
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::observation::tests::observation;
    use super::*;

    #[test]
    fn it_continues_the_last_update() {
        let mut seen = observation([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.5, 0.0]]);
        seen.lr_ratio = 0.5;
        assert_eq!(LastUpdate.predict(&seen, 3.0), [[0.0, 0.0, 0.0, 1.5]]);
        let broken = observation([[f64::NAN, 0.0]; WINDOWS]);
        assert_eq!(LastUpdate.predict(&broken, 1.0), [[0.0; WINDOWS]]);
    }
}
