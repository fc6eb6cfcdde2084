//! Properties that a hybrid run must keep.

use serde::{Deserialize, Serialize};

/// The values that the invariants are checked against, at the end of a phase.
#[derive(Debug, Clone, Copy)]
pub struct Snapshot<'a> {
    /// Losses of the real steps, the oldest first.
    pub losses: &'a [f64],
    /// Gradient norms of the real steps.
    pub gradients: &'a [f64],
    /// Gradient norms that count as bounded, in multiples of their mean.
    pub bound: f64,
    /// Errors of predicted losses, and the half-widths of their intervals.
    pub intervals: &'a [(f64, f64)],
    /// The square of the last update: NaN or infinite where it has brought that to the weights.
    pub weights: f64,
}

/// An invariant that does not hold.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, thiserror::Error,
)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Violation {
    /// The last quarter of the losses is above the first by more than 5 %.
    #[error("the rolling mean of the loss rose over the run")]
    LossRises,
    /// A norm is above the bound, or NaN.
    #[error("a gradient norm is out of its bound")]
    GradientUnbounded,
    /// A phase follows one that it must not follow.
    #[error("a phase was skipped")]
    PhaseSkipped,
    /// More errors are outside than inside.
    #[error("fewer than half of the predicted losses are inside their intervals")]
    OutsideInterval,
    /// The last update was not finite.
    #[error("a NaN or infinity reached the weights")]
    NotFinite,
}

/// Values that a statistical invariant needs before it is checked.
const ENOUGH: usize = 20;

/// The invariants that do not hold. Those of losses are checked from 20 values on.
pub fn violations(seen: &Snapshot<'_>) -> Vec<Violation> {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let mut found = Vec::new();
    let quarter = seen.losses.len() / 4;
    if seen.losses.len() >= 4 * ENOUGH {
        let (first, last) = (
            &seen.losses[..quarter],
            &seen.losses[seen.losses.len() - quarter..],
        );
        let (last, bound) = (mean(last), 1.05 * mean(first).abs() + 1e-9);
        if last.is_nan() || last > bound {
            found.push(Violation::LossRises);
        }
    }
    let most = seen.bound * mean(seen.gradients);
    if !seen.gradients.iter().all(|norm| *norm <= most) {
        found.push(Violation::GradientUnbounded);
    }
    if seen.intervals.len() >= ENOUGH {
        let inside = seen
            .intervals
            .iter()
            .filter(|(error, width)| error.abs() <= *width)
            .count();
        if 2 * inside < seen.intervals.len() {
            found.push(Violation::OutsideInterval);
        }
    }
    if !seen.weights.is_finite() {
        found.push(Violation::NotFinite);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn healthy<'a>(losses: &'a [f64], gradients: &'a [f64]) -> Snapshot<'a> {
        Snapshot {
            losses,
            gradients,
            bound: 100.0,
            intervals: &[],
            weights: 0.5,
        }
    }

    #[test]
    fn each_violation_is_named() {
        let falling: Vec<f64> = (0..100).map(|i| 2.0 - 0.01 * f64::from(i)).collect();
        let rising: Vec<f64> = (0..100).map(|i| 1.0 + 0.01 * f64::from(i)).collect();
        let gradients = [1.0; 50];
        let fine = healthy(&falling, &gradients);
        assert_eq!(violations(&fine), []);
        assert_eq!(
            violations(&healthy(&rising, &gradients)),
            [Violation::LossRises]
        );
        let broken = [1.0, f64::NAN];
        assert_eq!(
            violations(&healthy(&falling, &broken)),
            [Violation::GradientUnbounded]
        );
        let outside = [(0.5, 0.1); 20];
        let cases = [
            (
                Snapshot {
                    intervals: &outside,
                    ..fine
                },
                Violation::OutsideInterval,
            ),
            (
                Snapshot {
                    weights: f64::NAN,
                    ..fine
                },
                Violation::NotFinite,
            ),
        ];
        for (seen, expected) in cases {
            assert_eq!(violations(&seen), [expected]);
        }
    }
}
