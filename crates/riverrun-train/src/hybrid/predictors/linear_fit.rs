//! A line through each layer group's last updates.

use super::Predictor;
use crate::hybrid::observation::{Observation, WINDOWS};

/// Takes the one direction that holds most of a group's last updates (the first left singular vector of `[U_1 … U_4]`, from
/// their inner products), fits a line to their lengths along it, and follows the line.
///
/// What the updates have outside of that direction counts as noise. A fitted length is held between 0 and 1.5 of the mean, so
/// that a line through noise does not run away.
#[derive(Debug, Clone, Copy, Default)]
pub struct LinearFit;

impl Predictor for LinearFit {
    fn predict(&self, seen: &Observation, windows: f64) -> Vec<[f64; WINDOWS]> {
        let groups = seen.groups.iter().map(|gram| {
            let (along, _) = gram.principal();
            let ahead = followed(&along, windows) * seen.lr_ratio;
            along.map(|weight| weight * ahead)
        });
        groups.collect()
    }
}

/// The sum of the fitted line over the windows to come. `along` are the lengths of the updates along a direction of length
/// 1, in units of their common length.
fn followed(along: &[f64; WINDOWS], windows: f64) -> f64 {
    let mean = along.iter().sum::<f64>() / WINDOWS as f64;
    if mean <= 0.0 {
        return 0.0;
    }
    let slope = crate::hybrid::plateau::slope(along.iter().copied());
    let middle = (WINDOWS as f64 - 1.0) / 2.0;
    let whole = windows.floor() as usize;
    let length = |window: usize| {
        let at = WINDOWS as f64 + window as f64 - middle;
        (mean + slope * at).clamp(0.0, 1.5 * mean)
    };
    let sum: f64 = (0..whole).map(length).sum();
    sum + (windows - whole as f64) * length(whole)
}

#[cfg(test)]
mod tests {
    use super::super::super::observation::tests::observation;
    use super::*;

    /// The change in the plane that a forecast makes.
    fn change(updates: [[f64; 2]; WINDOWS], windows: f64) -> [f64; 2] {
        let found = LinearFit.predict(&observation(updates), windows);
        std::array::from_fn(|k| (0..WINDOWS).map(|j| found[0][j] * updates[j][k]).sum())
    }

    #[test]
    fn steady_updates_go_on() {
        let found = change([[0.3, -0.4]; WINDOWS], 2.5);
        assert!(
            (found[0] - 0.75).abs() < 1e-9 && (found[1] + 1.0).abs() < 1e-9,
            "{found:?}"
        );
    }

    #[test]
    fn shrinking_updates_run_out() {
        let found = change([[4.0, 0.0], [3.0, 0.0], [2.0, 0.0], [1.0, 0.0]], 10.0);
        assert!(found[0].abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn alternating_updates_do_not_move() {
        let updates = [[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]];
        let found = change(updates, 4.0);
        assert!(found[0].abs() < 1e-9, "{found:?}");
    }
}
