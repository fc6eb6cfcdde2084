//! The metrics of a member's trajectory, the ensemble's forecast, and the proposed change of the weights.

use super::{DELTAS, Outcome, Problem};

/// The metrics of one member's trajectory.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Metrics {
    /// `|L_t - L_{t-1}|` for each step.
    pub step_deltas: Vec<f64>,
    /// `‖h‖₂` after each step.
    pub hidden_norms: Vec<f64>,
    /// The population variance of the trajectory, its start included.
    pub loss_variance: f64,
    /// The mean of `|L_{t+1} - 2 L_t + L_{t-1}|`; 0 for fewer than three points.
    pub smoothness: f64,
}

fn mean(x: impl ExactSizeIterator<Item = f64>) -> f64 {
    let n = x.len();
    if n == 0 {
        0.0
    } else {
        x.sum::<f64>() / n as f64
    }
}

fn variance(x: impl ExactSizeIterator<Item = f64> + Clone) -> f64 {
    let centre = mean(x.clone());
    mean(x.map(|x| (x - centre) * (x - centre)))
}

impl Metrics {
    /// From a trajectory of `Y + 1` points and the `Y` norms.
    pub fn new(trajectory: &[f32], norms: &[f32]) -> Self {
        let points: Vec<f64> = trajectory.iter().map(|x| f64::from(*x)).collect();
        Self {
            step_deltas: points.windows(2).map(|x| (x[1] - x[0]).abs()).collect(),
            hidden_norms: norms.iter().map(|x| f64::from(*x)).collect(),
            loss_variance: variance(points.iter().copied()),
            smoothness: mean(points.windows(3).map(|x| (x[2] - 2.0 * x[1] + x[0]).abs())),
        }
    }
}

/// The ensemble's forecast.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Summary {
    /// The mean of the members' trajectories, `Y + 1` points.
    pub trajectory: Vec<f64>,
    /// The population variance over the members of the last point.
    pub variance: f64,
    /// `√variance (1 + 0.1 √Y)`.
    pub total_std: f64,
    /// Half of `total_std`.
    pub epistemic: f64,
    /// Half of `total_std`.
    pub aleatoric: f64,
    /// The mean of the last point minus and plus `2 total_std`.
    pub bounds: [f64; 2],
    /// `1 / (1 + total_std)`.
    pub confidence: f64,
    /// The entropy of a member and step.
    pub mean_entropy: f64,
}

/// The change of the weights that a member's delta head proposes.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct WeightDelta {
    /// `lr · gradient norm · (1 + tanh y_0) (1 + improvement) Y`.
    pub magnitude: f64,
    /// `σ(y_1)`: the confidence in the direction.
    pub direction_confidence: f64,
    /// `magnitude · σ(y_l) · σ(y_1)`, `l` = 2..9: embedding; attention q, k, v, out; MLP up, down; head. The magnitude is
    /// included.
    pub layers: [f64; DELTAS - 2],
}

fn sigmoid(x: f64) -> f64 {
    if x < 0.0 {
        x.exp() / (1.0 + x.exp())
    } else {
        1.0 / (1.0 + (-x).exp())
    }
}

impl Outcome<f32> {
    fn member_trajectory(&self, problem: &Problem, m: usize) -> &[f32] {
        &self.trajectory[m * (problem.steps + 1)..(m + 1) * (problem.steps + 1)]
    }

    /// The metrics of every member.
    pub fn metrics(&self, problem: &Problem) -> Vec<Metrics> {
        (0..problem.members)
            .map(|m| {
                let norms = &self.norm[m * problem.steps..(m + 1) * problem.steps];
                Metrics::new(self.member_trajectory(problem, m), norms)
            })
            .collect()
    }

    /// The ensemble's forecast; `None` without members.
    pub fn summary(&self, problem: &Problem) -> Option<Summary> {
        let (members, steps) = (problem.members, problem.steps);
        if members == 0 {
            return None;
        }
        let points = steps + 1;
        let at = |m: usize, t: usize| f64::from(self.trajectory[m * points + t]);
        let trajectory: Vec<f64> = (0..points)
            .map(|t| mean((0..members).map(|m| at(m, t))))
            .collect();
        let last = trajectory[steps];
        let variance = variance((0..members).map(|m| at(m, steps)));
        let total_std = variance.sqrt() * (1.0 + 0.1 * (steps as f64).sqrt());
        let entropy: f64 = self.entropy.iter().map(|x| f64::from(*x)).sum();
        Some(Summary {
            trajectory,
            variance,
            total_std,
            epistemic: total_std / 2.0,
            aleatoric: total_std / 2.0,
            bounds: [last - 2.0 * total_std, last + 2.0 * total_std],
            confidence: 1.0 / (1.0 + total_std),
            mean_entropy: entropy / (members * steps.max(1)) as f64,
        })
    }

    /// The change of the weights that every member proposes, at a learning rate and a gradient norm.
    pub fn weight_deltas(
        &self,
        problem: &Problem,
        lr: f64,
        gradient_norm: f64,
    ) -> Vec<WeightDelta> {
        let steps = problem.steps;
        (0..problem.members)
            .map(|m| {
                let points = self.member_trajectory(problem, m);
                let (first, last) = (f64::from(points[0]), f64::from(points[steps]));
                let improvement = (first - last).max(0.0) / first.max(1e-8);
                let y = |k: usize| f64::from(self.delta[m * DELTAS + k]);
                let magnitude =
                    lr * gradient_norm * (1.0 + y(0).tanh()) * (1.0 + improvement) * steps as f64;
                let direction_confidence = sigmoid(y(1));
                WeightDelta {
                    magnitude,
                    direction_confidence,
                    layers: std::array::from_fn(|l| {
                        magnitude * sigmoid(y(l + 2)) * direction_confidence
                    }),
                }
            })
            .collect()
    }
}

/// Reports a finished rollout to `tracing`: a span `rollout` at debug with the ensemble's figures, inside it at trace a span
/// `member` and in that an event for every step. Does nothing, and computes nothing, without a subscriber.
pub fn spans(problem: &Problem, found: &Outcome<f32>) {
    let span = tracing::debug_span!(
        "rollout",
        members = problem.members,
        hidden = problem.hidden,
        stochastic = problem.stochastic,
        steps = problem.steps,
        decode = problem.decode.name(),
    );
    if span.is_disabled() {
        return;
    }
    let _entered = span.enter();
    for (m, metrics) in found.metrics(problem).into_iter().enumerate() {
        let points = found.member_trajectory(problem, m);
        let span = tracing::trace_span!(
            "member",
            member = m,
            variance = metrics.loss_variance,
            smoothness = metrics.smoothness,
            entropy = found.entropy[m],
        );
        let _entered = span.enter();
        for t in 0..problem.steps {
            tracing::trace!(
                step = t + 1,
                loss_pred = points[t + 1],
                hidden_norm = metrics.hidden_norms[t],
                delta = metrics.step_deltas[t],
            );
        }
    }
    if let Some(summary) = found.summary(problem) {
        tracing::debug!(
            loss_pred = summary.trajectory[problem.steps],
            variance = summary.variance,
            confidence = summary.confidence,
            entropy = summary.mean_entropy,
        );
    }
}
