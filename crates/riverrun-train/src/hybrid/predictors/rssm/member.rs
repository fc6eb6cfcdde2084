//! One GRU of the ensemble, forward and backward.

use serde::{Deserialize, Serialize};

use super::{CLASSES, COMBINED, HIDDEN, sigmoid};
use crate::hybrid::FEATURES;

/// Bound of the loss head's output, and the least loss: as in [`rollout`](riverrun_kernels::rollout).
const CLAMP: f64 = 10.0;
const LEAST: f64 = 1e-6;

/// Weights, with rows of the gates z, r, c in this order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Member {
    /// `[3H, I]`.
    pub w: Vec<f32>,
    /// `[3H, H]`.
    pub u: Vec<f32>,
    /// `[3H]`.
    pub bias: Vec<f32>,
}

/// The values of a step that the backward pass reads.
pub struct Step {
    features: Vec<f64>,
    before: Vec<f64>,
    gates: [Vec<f64>; 3],
    after: Vec<f64>,
    p: Vec<f64>,
    pub loss: f64,
    /// `w · v` within its bounds, so that gradients pass.
    inside: bool,
}

impl Step {
    /// `v = [h ; p]`.
    pub fn combined(&self) -> Vec<f64> {
        [self.after.as_slice(), &self.p].concat()
    }
}

/// Gradients of a member and of the loss head.
pub struct Gradient {
    w: Vec<f64>,
    u: Vec<f64>,
    bias: Vec<f64>,
    head: Vec<f64>,
}

impl Gradient {
    pub fn new() -> Self {
        Self {
            w: vec![0.0; 3 * HIDDEN * FEATURES],
            u: vec![0.0; 3 * HIDDEN * HIDDEN],
            bias: vec![0.0; 3 * HIDDEN],
            head: vec![0.0; COMBINED],
        }
    }

    pub fn norm(&self) -> f64 {
        let all = [&self.w, &self.u, &self.bias, &self.head];
        let squares = all.into_iter().flatten().map(|g| g * g);
        squares.sum::<f64>().sqrt()
    }

    pub fn descend(&self, member: &mut Member, head: &mut [f32], rate: f64) {
        let pairs: [(&mut [f32], &Vec<f64>); 4] = [
            (&mut member.w, &self.w),
            (&mut member.u, &self.u),
            (&mut member.bias, &self.bias),
            (head, &self.head),
        ];
        for (weights, gradients) in pairs {
            for (weight, gradient) in weights.iter_mut().zip(gradients) {
                *weight -= (rate * gradient) as f32;
            }
        }
    }
}

impl Member {
    /// `steps` steps from a state; the first feature becomes the loss before each further step.
    pub fn forward(
        &self,
        head: &[f32],
        start: &[f64],
        features: &[f64],
        steps: usize,
    ) -> Vec<Step> {
        let (mut state, mut features) = (start.to_vec(), features.to_vec());
        let mut done = Vec::with_capacity(steps);
        for _ in 0..steps {
            let step = self.step(head, &state, &features);
            state.clone_from(&step.after);
            features[0] = step.loss;
            done.push(step);
        }
        done
    }

    fn step(&self, head: &[f32], before: &[f64], features: &[f64]) -> Step {
        let sums = |gate: usize, state: &[f64]| -> Vec<f64> {
            let row = |unit: usize| {
                let row = gate * HIDDEN + unit;
                let input = dot(&self.w[row * FEATURES..][..FEATURES], features);
                let recurrent = dot(&self.u[row * HIDDEN..][..HIDDEN], state);
                input + recurrent + f64::from(self.bias[row])
            };
            (0..HIDDEN).map(row).collect()
        };
        let gate =
            |gate: usize| -> Vec<f64> { sums(gate, before).into_iter().map(sigmoid).collect() };
        let (z, r) = (gate(0), gate(1));
        let reset: Vec<f64> = r.iter().zip(before).map(|(r, h)| r * h).collect();
        let c: Vec<f64> = sums(2, &reset).into_iter().map(f64::tanh).collect();
        let after: Vec<f64> = (0..HIDDEN)
            .map(|i| (1.0 - z[i]) * before[i] + z[i] * c[i])
            .collect();
        let logit = |i: usize| after[i * HIDDEN / CLASSES];
        let most = (0..CLASSES).map(logit).fold(f64::NEG_INFINITY, f64::max);
        let exponentials: Vec<f64> = (0..CLASSES).map(|i| (logit(i) - most).exp()).collect();
        let total: f64 = exponentials.iter().sum();
        let p: Vec<f64> = exponentials.iter().map(|e| e / total).collect();
        let y = dot(&head[..HIDDEN], &after) + dot(&head[HIDDEN..], &p);
        Step {
            features: features.to_vec(),
            before: before.to_vec(),
            gates: [z, r, c],
            after,
            p,
            loss: y.clamp(-CLAMP, CLAMP).exp().max(LEAST),
            inside: y.abs() < CLAMP,
        }
    }

    /// Adds the gradients of a value whose derivatives by the losses of the steps are `errors`.
    pub fn backward(&self, head: &[f32], steps: &[Step], errors: &[f64], into: &mut Gradient) {
        let mut d_state = vec![0.0; HIDDEN];
        let mut d_loss_after = 0.0;
        for (step, error) in steps.iter().zip(errors).rev() {
            let mut d_h = d_state;
            if step.inside {
                let d_y = (error + d_loss_after) * step.loss;
                let v = step.combined();
                for (gradient, v) in into.head.iter_mut().zip(&v) {
                    *gradient += d_y * v;
                }
                for (d, weight) in d_h.iter_mut().zip(head) {
                    *d += d_y * f64::from(*weight);
                }
                let d_p: Vec<f64> = head[HIDDEN..].iter().map(|w| d_y * f64::from(*w)).collect();
                let mean: f64 = d_p.iter().zip(&step.p).map(|(d, p)| d * p).sum();
                for i in 0..CLASSES {
                    d_h[i * HIDDEN / CLASSES] += step.p[i] * (d_p[i] - mean);
                }
            }
            let [z, r, c] = &step.gates;
            let mut d_sums = vec![0.0; 3 * HIDDEN];
            let mut d_before: Vec<f64> = (0..HIDDEN).map(|i| d_h[i] * (1.0 - z[i])).collect();
            for i in 0..HIDDEN {
                d_sums[2 * HIDDEN + i] = d_h[i] * z[i] * (1.0 - c[i] * c[i]);
                d_sums[i] = d_h[i] * (c[i] - step.before[i]) * z[i] * (1.0 - z[i]);
            }
            let d_reset = self.through_u(2, &d_sums);
            for i in 0..HIDDEN {
                d_sums[HIDDEN + i] = d_reset[i] * step.before[i] * r[i] * (1.0 - r[i]);
                d_before[i] += d_reset[i] * r[i];
            }
            for gate in 0..2 {
                let through = self.through_u(gate, &d_sums);
                d_before.iter_mut().zip(&through).for_each(|(d, t)| *d += t);
            }
            d_loss_after = 0.0;
            for (row, d) in d_sums.iter().enumerate() {
                into.bias[row] += d;
                d_loss_after += d * f64::from(self.w[row * FEATURES]);
                let weights = &mut into.w[row * FEATURES..][..FEATURES];
                for (gradient, x) in weights.iter_mut().zip(&step.features) {
                    *gradient += d * x;
                }
                let weights = &mut into.u[row * HIDDEN..][..HIDDEN];
                for (i, gradient) in weights.iter_mut().enumerate() {
                    let reset = if row >= 2 * HIDDEN { r[i] } else { 1.0 };
                    *gradient += d * reset * step.before[i];
                }
            }
            d_state = d_before;
        }
    }

    /// A gate's gradients through its recurrent weights.
    fn through_u(&self, gate: usize, d_sums: &[f64]) -> Vec<f64> {
        let mut found = vec![0.0; HIDDEN];
        for unit in 0..HIDDEN {
            let row = gate * HIDDEN + unit;
            for (d, weight) in found.iter_mut().zip(&self.u[row * HIDDEN..][..HIDDEN]) {
                *d += d_sums[row] * f64::from(*weight);
            }
        }
        found
    }
}

fn dot(weights: &[f32], x: &[f64]) -> f64 {
    weights.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_are_those_of_finite_differences() {
        let number = |n: usize| 0.3 * (n as f32 * 0.7).sin();
        let numbers = |count: usize, from: usize| (from..from + count).map(number).collect();
        let mut member = Member {
            w: numbers(3 * HIDDEN * FEATURES, 1),
            u: numbers(3 * HIDDEN * HIDDEN, 5),
            bias: numbers(3 * HIDDEN, 11),
        };
        let mut head: Vec<f32> = numbers(COMBINED, 3);
        let start: Vec<f64> = (0..HIDDEN).map(|i| (i as f64).cos() * 0.5).collect();
        let features: Vec<f64> = (0..FEATURES).map(|i| (i as f64 * 1.3).sin()).collect();
        let weights = [0.5, -1.0, 2.0];
        let value = |member: &Member, head: &[f32]| -> f64 {
            let steps = member.forward(head, &start, &features, 3);
            steps
                .iter()
                .zip(weights)
                .map(|(step, w)| w * step.loss)
                .sum()
        };
        let mut gradient = Gradient::new();
        let steps = member.forward(&head, &start, &features, 3);
        member.backward(&head, &steps, &weights, &mut gradient);
        let h = 1e-3f32;
        let close = |found: f64, plus: f64, minus: f64| {
            let difference = (plus - minus) / (2.0 * f64::from(h));
            let off = (found - difference).abs();
            assert!(
                off < 1e-3 * (1.0 + difference.abs()),
                "{found} {difference}"
            );
        };
        for i in [0, 7, 64, HIDDEN * FEATURES + 3, 2 * HIDDEN * FEATURES + 130] {
            let w = member.w[i];
            member.w[i] = w + h;
            let plus = value(&member, &head);
            member.w[i] = w - h;
            let minus = value(&member, &head);
            member.w[i] = w;
            close(gradient.w[i], plus, minus);
        }
        for i in [2, HIDDEN * HIDDEN + 70, 2 * HIDDEN * HIDDEN + 200] {
            let u = member.u[i];
            member.u[i] = u + h;
            let plus = value(&member, &head);
            member.u[i] = u - h;
            let minus = value(&member, &head);
            member.u[i] = u;
            close(gradient.u[i], plus, minus);
        }
        for i in [1, HIDDEN + 5, 2 * HIDDEN + 9] {
            let b = member.bias[i];
            member.bias[i] = b + h;
            let plus = value(&member, &head);
            member.bias[i] = b - h;
            let minus = value(&member, &head);
            member.bias[i] = b;
            close(gradient.bias[i], plus, minus);
        }
        for i in [0, HIDDEN + 3] {
            let w = head[i];
            head[i] = w + h;
            let plus = value(&member, &head);
            head[i] = w - h;
            let minus = value(&member, &head);
            head[i] = w;
            close(gradient.head[i], plus, minus);
        }
    }
}
