//! Regularised nonlinear acceleration.

use super::Predictor;
use crate::hybrid::observation::{Observation, WINDOWS};

/// Weight of the penalty on the coefficients, in parts of the Gram matrix's norm.
const PENALTY: f64 = 1e-6;

/// Extrapolates the weights to where the updates vanish: the combination `Σ c_i w_i`, `Σ c_i = 1`, of the weights at the ends
/// of the last windows whose updates `Σ c_i U_i` have the least norm, with a penalty on `c` against the noise of the batches.
/// All layer groups share `c`. It learns nothing, and does not claim to be the next update, so it is not judged by it.
///
/// Source: Scieur, d'Aspremont and Bach, *Regularized Nonlinear Acceleration* (2016), algorithm 1.
#[derive(Debug, Clone, Copy, Default)]
pub struct Acceleration;

impl Predictor for Acceleration {
    fn predict(&self, seen: &Observation, _: f64) -> Vec<[f64; WINDOWS]> {
        let mut gram = [[0.0; WINDOWS]; WINDOWS];
        for group in seen.groups.iter().filter(|group| group.usable()) {
            for (sum, row) in gram.iter_mut().flatten().zip(group.0.iter().flatten()) {
                *sum += row;
            }
        }
        let weights = coefficients(gram).map_or([0.0; WINDOWS], moves);
        vec![weights; seen.groups.len()]
    }

    fn is_judged(&self) -> bool {
        false
    }
}

/// `c = (G + λI)⁻¹ 1`, scaled to a sum of 1; none for updates without a length.
fn coefficients(mut gram: [[f64; WINDOWS]; WINDOWS]) -> Option<[f64; WINDOWS]> {
    let norm = gram.iter().flatten().map(|x| x * x).sum::<f64>().sqrt();
    if !(norm > 0.0 && norm.is_finite()) {
        return None;
    }
    let mut right = [1.0; WINDOWS];
    for (i, row) in gram.iter_mut().enumerate() {
        row[i] += PENALTY * norm;
    }
    // A symmetric positive definite matrix needs no pivots.
    for i in 0..WINDOWS {
        for j in i + 1..WINDOWS {
            let factor = gram[j][i] / gram[i][i];
            for k in i..WINDOWS {
                gram[j][k] -= factor * gram[i][k];
            }
            right[j] -= factor * right[i];
        }
    }
    for i in (0..WINDOWS).rev() {
        let known: f64 = (i + 1..WINDOWS).map(|j| gram[i][j] * right[j]).sum();
        right[i] = (right[i] - known) / gram[i][i];
    }
    let sum: f64 = right.iter().sum();
    let scaled = right.map(|c| c / sum);
    scaled.iter().all(|c| c.is_finite()).then_some(scaled)
}

/// The multiples of the updates that lead from the last weights to `Σ c_i w_i`, where `w_i` are the weights after update `i`:
/// they are the last weights less the updates since.
fn moves(c: [f64; WINDOWS]) -> [f64; WINDOWS] {
    let mut before = 0.0;
    std::array::from_fn(|i| {
        let part = -before;
        before += c[i];
        part
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::observation::tests::observation;
    use super::*;

    /// Gradient descent on a quadratic form with two rates: the extrapolated weights are nearer to the minimum than the last.
    #[test]
    fn it_finds_the_minimum_that_the_updates_lead_to() {
        let mut weights = [1.0, 1.0];
        let updates = [(); WINDOWS].map(|()| {
            let update = [-0.2 * weights[0], -0.5 * weights[1]];
            weights = [weights[0] + update[0], weights[1] + update[1]];
            update
        });
        let found = Acceleration.predict(&observation(updates), 1.0)[0];
        let moved = |k: usize| -> f64 { found.iter().zip(updates).map(|(c, u)| c * u[k]).sum() };
        let off = (weights[0] + moved(0)).hypot(weights[1] + moved(1));
        let before = weights[0].hypot(weights[1]);
        assert!(off < 0.5 * before, "{off} {before}");
    }

    #[test]
    fn updates_without_a_length_move_nothing() {
        let still = observation([[0.0; 2]; WINDOWS]);
        assert_eq!(Acceleration.predict(&still, 1.0), [[0.0; WINDOWS]]);
        let broken = observation([[f64::NAN, 0.0]; WINDOWS]);
        assert_eq!(Acceleration.predict(&broken, 1.0), [[0.0; WINDOWS]]);
    }

    #[test]
    fn coefficients_sum_to_one_and_leave_the_last_weights() {
        let updates = observation([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.5, 0.0]]);
        let c = coefficients(updates.groups[0].0).unwrap();
        assert!((c.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        assert_eq!(moves([0.0, 0.0, 0.0, 1.0]), [0.0; WINDOWS]);
        assert_eq!(moves([1.0, 0.0, 0.0, 0.0]), [0.0, -1.0, -1.0, -1.0]);
    }
}
