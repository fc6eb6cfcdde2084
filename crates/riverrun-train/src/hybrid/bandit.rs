//! The choice of a horizon by a linear bandit.

use serde::{Deserialize, Serialize};

/// The horizons to choose from, in steps.
pub const HORIZONS: [u64; 5] = [10, 20, 40, 60, 80];
/// Values that describe the situation of a choice.
pub const CONTEXT: usize = 6;
/// Weight of the uncertainty in a choice.
const ALPHA: f64 = 1.0;
/// Regularisation: the diagonal that each arm starts from.
const LAMBDA: f64 = 1.0;

/// LinUCB with disjoint arms (Li, Chu, Langford and Schapire, *A Contextual-Bandit Approach to Personalized News Article
/// Recommendation*, 2010, algorithm 1): for each arm a ridge regression of the reward, and a bonus for what it has not seen.
///
/// The inverse of each arm's matrix is kept and updated by Sherman and Morrison's formula. Ties go to the shorter horizon,
/// so the choice is a function of what was learned.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bandit {
    arms: Vec<Arm>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Arm {
    /// `(λ I + Σ x xᵀ)⁻¹`, row by row.
    inverse: Vec<f64>,
    /// `Σ r x`.
    response: Vec<f64>,
}

impl Default for Bandit {
    fn default() -> Self {
        let mut inverse = vec![0.0; CONTEXT * CONTEXT];
        (0..CONTEXT).for_each(|i| inverse[i * CONTEXT + i] = 1.0 / LAMBDA);
        let response = vec![0.0; CONTEXT];
        Self {
            arms: vec![Arm { inverse, response }; HORIZONS.len()],
        }
    }
}

impl Arm {
    fn times(&self, x: &[f64; CONTEXT]) -> [f64; CONTEXT] {
        std::array::from_fn(|i| {
            (0..CONTEXT)
                .map(|j| self.inverse[i * CONTEXT + j] * x[j])
                .sum()
        })
    }

    fn bound(&self, x: &[f64; CONTEXT]) -> f64 {
        let ax = self.times(x);
        let mean: f64 = ax.iter().zip(&self.response).map(|(a, r)| a * r).sum();
        let variance: f64 = ax.iter().zip(x).map(|(a, x)| a * x).sum();
        mean + ALPHA * variance.max(0.0).sqrt()
    }
}

impl Bandit {
    /// The arm with the highest upper bound among those of at most `longest` steps; the shortest where none is. A context
    /// that is not finite chooses the shortest.
    pub fn choose(&self, context: &[f64; CONTEXT], longest: u64) -> usize {
        if context.iter().any(|value| !value.is_finite()) {
            return 0;
        }
        let mut best = (0, f64::NEG_INFINITY);
        for (arm, _) in HORIZONS
            .iter()
            .enumerate()
            .filter(|(_, steps)| **steps <= longest)
        {
            let bound = self.arms[arm].bound(context);
            if bound > best.1 {
                best = (arm, bound);
            }
        }
        best.0
    }

    /// Learns the reward of a choice; a reward that is not finite counts as -1.
    pub fn learn(&mut self, arm: usize, context: &[f64; CONTEXT], reward: f64) {
        if context.iter().any(|value| !value.is_finite()) {
            return;
        }
        let reward = if reward.is_finite() {
            reward.clamp(-1.0, 1.0)
        } else {
            -1.0
        };
        let arm = &mut self.arms[arm];
        let ax = arm.times(context);
        let scale = 1.0 + ax.iter().zip(context).map(|(a, x)| a * x).sum::<f64>();
        for i in 0..CONTEXT {
            for j in 0..CONTEXT {
                arm.inverse[i * CONTEXT + j] -= ax[i] * ax[j] / scale;
            }
            arm.response[i] += reward * context[i];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: [f64; CONTEXT] = [1.0, 0.5, -0.2, 0.1, 0.0, 0.3];

    #[test]
    fn an_untried_bandit_takes_the_shortest() {
        assert_eq!(Bandit::default().choose(&X, 80), 0);
        assert_eq!(Bandit::default().choose(&X, 5), 0);
        let mut bad = X;
        bad[2] = f64::NAN;
        assert_eq!(Bandit::default().choose(&bad, 80), 0);
    }

    #[test]
    fn it_finds_the_best_arm() {
        let mut bandit = Bandit::default();
        let rewards = [0.1, 0.2, 0.9, 0.3, -1.0];
        for _ in 0..200 {
            let arm = bandit.choose(&X, 80);
            bandit.learn(arm, &X, rewards[arm]);
        }
        assert_eq!(bandit.choose(&X, 80), 2);
        assert_eq!(HORIZONS[bandit.choose(&X, 20)], 20);
    }

    #[test]
    fn a_broken_reward_is_the_worst() {
        let mut bandit = Bandit::default();
        for _ in 0..20 {
            bandit.learn(0, &X, f64::NAN);
            bandit.learn(1, &X, 0.5);
        }
        assert_ne!(bandit.choose(&X, 80), 0);
        let bound = bandit.arms[0].bound(&X);
        assert!(bound.is_finite());
    }

    #[test]
    fn the_inverse_stays_an_inverse() {
        let mut arm = Bandit::default();
        let mut matrix = vec![0.0; CONTEXT * CONTEXT];
        (0..CONTEXT).for_each(|i| matrix[i * CONTEXT + i] = LAMBDA);
        for n in 0..50 {
            let x: [f64; CONTEXT] = std::array::from_fn(|i| ((n * 7 + i * 3) as f64).sin());
            arm.learn(0, &x, 0.1);
            for i in 0..CONTEXT {
                for j in 0..CONTEXT {
                    matrix[i * CONTEXT + j] += x[i] * x[j];
                }
            }
        }
        for i in 0..CONTEXT {
            for j in 0..CONTEXT {
                let inverse = &arm.arms[0].inverse;
                let sum: f64 = (0..CONTEXT)
                    .map(|k| matrix[i * CONTEXT + k] * inverse[k * CONTEXT + j])
                    .sum();
                assert!((sum - f64::from(u8::from(i == j))).abs() < 1e-9);
            }
        }
    }
}
