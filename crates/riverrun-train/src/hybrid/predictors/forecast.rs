//! The losses that an ensemble expects.

use serde::{Deserialize, Serialize};

/// The losses that a predictor expects after each window of real steps to come, and how far its members are apart.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    /// The mean of the members' losses after each window.
    pub losses: Vec<f64>,
    /// `s (1 + √n / 10)` after `n` windows, where `s` is the standard deviation of the members' losses in units of the loss
    /// now: an ensemble cannot see the part of the error that its members share, which grows with the horizon.
    pub spread: Vec<f64>,
}

impl Forecast {
    /// From the trajectories of members, each a multiple of the loss now after every window.
    ///
    /// # Panics
    /// If trajectories differ in length.
    pub fn new(loss: f64, members: &[&[f32]]) -> Self {
        let count = members.len().max(1) as f64;
        let windows = members.first().map_or(0, |member| member.len());
        let mut forecast = Self::default();
        for n in 0..windows {
            let at = || members.iter().map(|member| f64::from(member[n]));
            let mean = at().sum::<f64>() / count;
            let variance = at().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
            let horizon = 1.0 + 0.1 * ((n + 1) as f64).sqrt();
            forecast.losses.push(loss * mean);
            forecast.spread.push(variance.sqrt() * horizon);
        }
        forecast
    }

    /// How well the members agree about a window, 0 to 1: `1 / (1 + spread)`; 0 beyond the forecast.
    pub fn agreement(&self, window: usize) -> f64 {
        let spread = self.spread.get(window).copied();
        let agreement = spread.map_or(0.0, |spread| 1.0 / (1.0 + spread));
        if agreement.is_finite() {
            agreement
        } else {
            0.0
        }
    }

    /// The windows, from the first on, about which the members agree at least so well.
    pub fn reach(&self, least: f64) -> usize {
        let agree = |window: &usize| self.agreement(*window) >= least;
        (0..self.spread.len()).take_while(agree).count()
    }

    /// The loss after a number of windows, rounded up; that of the last window beyond the forecast.
    pub fn loss(&self, windows: f64) -> Option<f64> {
        let last = self.losses.len().checked_sub(1)?;
        let window = (windows.ceil() as usize).saturating_sub(1);
        Some(self.losses[window.min(last)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_that_drift_apart_bound_the_reach() {
        let (low, high) = ([1.0, 0.9, 0.5], [1.0, 1.1, 1.5]);
        let forecast = Forecast::new(2.0, &[&low, &high]);
        assert!(forecast.losses.iter().all(|loss| (loss - 2.0).abs() < 1e-6));
        let expected = 0.1 * (1.0 + 0.1 * 2f64.sqrt());
        assert!((forecast.spread[1] - expected).abs() < 1e-6);
        assert_eq!(forecast.agreement(0), 1.0);
        assert_eq!(
            (
                forecast.reach(1.0),
                forecast.reach(0.85),
                forecast.reach(0.1)
            ),
            (1, 2, 3)
        );
        assert_eq!(forecast.agreement(3), 0.0);
    }

    #[test]
    fn losses_are_those_of_the_window_that_ends() {
        let forecast = Forecast::new(2.0, &[&[0.5, 0.25]]);
        assert_eq!(forecast.loss(0.4), Some(1.0));
        assert_eq!(forecast.loss(1.2), Some(0.5));
        assert_eq!(forecast.loss(9.0), Some(0.5));
        assert_eq!(Forecast::new(2.0, &[]).loss(1.0), None);
        let broken = Forecast::new(2.0, &[&[f32::NAN]]);
        assert_eq!((broken.agreement(0), broken.reach(0.5)), (0.0, 0));
    }
}
