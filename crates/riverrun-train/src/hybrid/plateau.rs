//! Plateaus of the loss.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Losses that a slope is fitted to.
const WINDOW: usize = 100;
/// Slope a step, relative to the mean loss, under which the loss counts as flat.
const SLOPE: f64 = 0.001 / WINDOW as f64;
/// Steps after a restart before the next.
const COOL_DOWN: u64 = 500;
/// Most restarts of a run.
const RESTARTS: u32 = 3;
/// Factor of a restart on the learning rate, which fades over the cool-down.
const FACTOR: f64 = 1.5;

/// Finds plateaus and answers them by raising the learning rate for a while.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Plateau {
    losses: VecDeque<f64>,
    restarts: u32,
    /// Steps since the last restart.
    since: Option<u64>,
}

impl Plateau {
    /// Takes in the loss of a step, and gives the factor of the learning rate for the next.
    pub fn observe(&mut self, loss: f64) -> f64 {
        if loss.is_finite() {
            if self.losses.len() == WINDOW {
                self.losses.pop_front();
            }
            self.losses.push_back(loss);
        }
        self.since = self.since.map(|steps| steps + 1);
        if self.since.is_none_or(|steps| steps >= COOL_DOWN)
            && self.flat()
            && self.restarts < RESTARTS
        {
            self.restarts += 1;
            self.since = Some(0);
            self.losses.clear();
        }
        match self.since {
            Some(steps) if steps < COOL_DOWN => {
                1.0 + (FACTOR - 1.0) * (1.0 - steps as f64 / COOL_DOWN as f64)
            }
            _ => 1.0,
        }
    }

    fn flat(&self) -> bool {
        if self.losses.len() < WINDOW {
            return false;
        }
        let mean = self.losses.iter().sum::<f64>() / WINDOW as f64;
        let falling = -slope(self.losses.iter().copied());
        falling < SLOPE * mean.abs()
    }
}

/// Least-squares slope of a sequence against its index; 0 for fewer than two values.
pub(crate) fn slope(values: impl ExactSizeIterator<Item = f64> + Clone) -> f64 {
    let count = values.len() as f64;
    if count < 2.0 {
        return 0.0;
    }
    let middle = (count - 1.0) / 2.0;
    let mean = values.clone().sum::<f64>() / count;
    let (mut top, mut bottom) = (0.0, 0.0);
    for (i, value) in values.enumerate() {
        let off = i as f64 - middle;
        top += off * (value - mean);
        bottom += off * off;
    }
    top / bottom
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_falling_loss_is_no_plateau() {
        let mut plateau = Plateau::default();
        for step in 0..1000 {
            assert_eq!(plateau.observe(2.0 - 0.001 * f64::from(step)), 1.0);
        }
    }

    #[test]
    fn a_flat_loss_restarts_three_times() {
        let mut plateau = Plateau::default();
        let factors: Vec<f64> = (0..3000).map(|_| plateau.observe(1.0)).collect();
        assert_eq!(plateau.restarts, 3);
        assert_eq!(
            factors.iter().filter(|factor| **factor == FACTOR).count(),
            3
        );
        assert_eq!(factors[98], 1.0);
        assert_eq!(factors[99], FACTOR);
        assert!(factors.iter().all(|factor| (1.0..=FACTOR).contains(factor)));
        assert_eq!(factors[2999], 1.0);
    }

    #[test]
    fn slopes() {
        assert_eq!(slope([].into_iter()), 0.0);
        assert_eq!(slope([3.0].into_iter()), 0.0);
        assert!((slope([1.0, 3.0, 5.0].into_iter()) - 2.0).abs() < 1e-12);
    }
}
