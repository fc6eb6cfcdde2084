//! An ensemble of small recurrent world models of the training run.

mod member;

use std::collections::VecDeque;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use riverrun_kernels::rollout::{Arguments, DELTAS, HEADS, Problem, cpu};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Predictor, continue_mean};
use crate::hybrid::FEATURES;
use crate::hybrid::observation::{Observation, WINDOWS};
use member::{Gradient, Member};

const MEMBERS: usize = 5;
const HIDDEN: usize = 64;
const CLASSES: usize = 32;
/// `H + S`.
const COMBINED: usize = HIDDEN + CLASSES;
/// Learning rate of the members; that of the delta head is a tenth.
const RATE: f64 = 1e-3;
const CLIP: f64 = 5.0;
/// Windows that a lesson goes back, and what each further one counts.
const BACK: usize = 4;
const FADE: f64 = 0.7;

/// RSSM-lite: five GRUs that forecast the loss window by window from the 64 features, as
/// [`rollout`](riverrun_kernels::rollout) does, and whose state after the last window says how far to go.
///
/// The delta head's outputs mean: `tanh y_0 + 1` is the multiple of the recent mean update that a window adds, and
/// `y_2 … y_9`, through a sigmoid, how the layer groups share it; group `g` takes `y_{2 + g mod 8}`. `σ(y_1)`, how sure the
/// members are of the direction, holds the multiple back where the loss does not fall.
///
/// A lesson unrolls the last four windows from the first one's features, takes the errors of the forecast losses, 0.7 for
/// each window back, and goes down their gradients, clipped to a norm of 5.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Rssm {
    members: Vec<Member>,
    /// `[11, H + S]`: the loss, then the delta head; all members share it.
    heads: Vec<f32>,
    /// The last windows: step, features and loss.
    history: VecDeque<(u64, Vec<f32>, f64)>,
}

impl Rssm {
    fn start(&mut self) {
        let mut random = ChaCha8Rng::seed_from_u64(0x7273_736d);
        let mut draw = |count: usize, bound: f32| -> Vec<f32> {
            let one = |_| random.random_range(-1.0f32..1.0) * bound;
            (0..count).map(one).collect()
        };
        // Each member from numbers of its own, so that they differ.
        let bound = 1.0 / (HIDDEN as f32).sqrt();
        self.members = (0..MEMBERS)
            .map(|_| Member {
                w: draw(3 * HIDDEN * FEATURES, bound),
                u: draw(3 * HIDDEN * HIDDEN, bound),
                bias: vec![0.0; 3 * HIDDEN],
            })
            .collect();
        self.heads = draw(HEADS * COMBINED, 0.01);
    }

    /// The delta head's outputs after `windows` windows: the mean over the members.
    fn outputs(&self, seen: &Observation, windows: usize) -> Option<[f64; DELTAS]> {
        if self.members.is_empty() || seen.features.len() != FEATURES {
            return None;
        }
        let problem = Problem::new(MEMBERS, HIDDEN, windows).with_stochastic(CLASSES);
        let all = |part: fn(&Member) -> &Vec<f32>| -> Vec<f32> {
            self.members.iter().flat_map(part).copied().collect()
        };
        let found = cpu::run(
            &problem,
            Arguments {
                w: &all(|member| &member.w),
                u: &all(|member| &member.u),
                bias: &all(|member| &member.bias),
                heads: &self.heads,
                h0: &latent(&seen.features).repeat(MEMBERS),
                features: &seen.features,
                loss: &[seen.loss as f32],
            },
        )
        .ok()?;
        Some(std::array::from_fn(|k| {
            let outputs = found.delta.iter().skip(k).step_by(DELTAS);
            outputs.map(|y| f64::from(*y)).sum::<f64>() / MEMBERS as f64
        }))
    }

    /// One lesson for each member, of the losses after the first of the history.
    fn learn_losses(&mut self) {
        let history: Vec<_> = self.history.iter().collect();
        let features: Vec<f64> = history[0].1.iter().map(|x| f64::from(*x)).collect();
        let start: Vec<f64> = latent(&history[0].1).into_iter().map(f64::from).collect();
        let losses: Vec<f64> = history[1..].iter().map(|(_, _, loss)| *loss).collect();
        let newest = losses.len();
        for member in &mut self.members {
            let mut gradient = Gradient::new();
            let (head, _) = self.heads.split_at(COMBINED);
            let steps = member.forward(head, &start, &features, newest);
            let errors: Vec<f64> = steps
                .iter()
                .zip(&losses)
                .enumerate()
                .map(|(k, (step, loss))| FADE.powi((newest - 1 - k) as i32) * (step.loss - loss))
                .collect();
            member.backward(head, &steps, &errors, &mut gradient);
            let norm = gradient.norm();
            if norm.is_finite() {
                let rate = RATE * (CLIP / norm.max(CLIP));
                gradient.descend(member, &mut self.heads[..COMBINED], rate);
            }
        }
    }

    /// A lesson of the delta head: the multiples that a window's update had, by layer group.
    fn learn_deltas(&mut self, before: &Observation, found: &[f64], improving: bool) {
        let mean = found.iter().sum::<f64>() / found.len().max(1) as f64;
        let norm = f64::from(before.features[8]);
        let sure = match improving {
            true => 0.5 + 0.3 * norm.tanh(),
            false => 0.3 + 0.2 * norm.tanh(),
        };
        let mut targets = [0.0; DELTAS];
        targets[0] = (mean - 1.0).clamp(-0.99, 0.99);
        targets[1] = sure;
        for layer in 0..DELTAS - 2 {
            let own = found.iter().skip(layer).step_by(DELTAS - 2);
            let (sum, count) = own.fold((0.0, 0.0), |(sum, count), x| (sum + x, count + 1.0));
            let scale = match count > 0.0 && mean > 1e-6 {
                true => (sum / count / mean).clamp(0.1, 2.0),
                false => 1.0,
            };
            targets[layer + 2] = share(scale);
        }
        let features: Vec<f64> = before.features.iter().map(|x| f64::from(*x)).collect();
        let start: Vec<f64> = latent(&before.features)
            .into_iter()
            .map(f64::from)
            .collect();
        for member in &self.members {
            let (loss_head, heads) = self.heads.split_at_mut(COMBINED);
            let step = member.forward(loss_head, &start, &features, 1);
            let v = step[0].combined();
            for (k, row) in heads.chunks_exact_mut(COMBINED).enumerate() {
                let y: f64 = row.iter().zip(&v).map(|(w, v)| f64::from(*w) * v).sum();
                let (value, slope) = match k {
                    0 => (y.tanh(), 1.0 - y.tanh().powi(2)),
                    _ => (sigmoid(y), sigmoid(y) * (1.0 - sigmoid(y))),
                };
                let d = 0.1 * RATE * (value - targets[k]) * slope;
                for (weight, v) in row.iter_mut().zip(&v) {
                    *weight -= (d * v) as f32;
                }
            }
        }
    }
}

impl Predictor for Rssm {
    fn predict(&self, seen: &Observation, windows: f64) -> Vec<[f64; WINDOWS]> {
        let y = self.outputs(seen, (windows.ceil() as usize).max(1));
        let y = y.unwrap_or([0.0; DELTAS]);
        let sure = (2.0 * sigmoid(y[1])).min(1.0);
        let whole = sure * (1.0 + y[0].tanh());
        let multiple = |group: usize| whole * scale(sigmoid(y[2 + group % (DELTAS - 2)]));
        let multiples: Vec<f64> = (0..seen.groups.len()).map(multiple).collect();
        continue_mean(seen, windows, &multiples)
    }

    fn learn(&mut self, before: &Observation, after: &Observation) {
        let finite = |seen: &Observation| {
            let features = seen.features.iter().all(|x| x.is_finite());
            features && seen.features.len() == FEATURES && seen.loss.is_finite()
        };
        if !finite(before) || !finite(after) {
            return;
        }
        if self.members.is_empty() {
            self.start();
        }
        if self
            .history
            .back()
            .is_none_or(|(step, ..)| *step != before.step)
        {
            self.history.clear();
            let first = (before.step, before.features.clone(), before.loss);
            self.history.push_back(first);
        }
        let last = (after.step, after.features.clone(), after.loss);
        self.history.push_back(last);
        if self.history.len() > BACK + 1 {
            self.history.pop_front();
        }
        self.learn_losses();
        self.learn_deltas(before, &after.continued(), after.loss < before.loss);
    }

    fn reset(&mut self) {
        *self = Self::default();
    }

    fn save(&self) -> Value {
        serde_json::to_value(self).expect("numbers are JSON")
    }

    fn load(&mut self, saved: Value) -> Result<(), String> {
        let loaded: Self = serde_json::from_value(saved).map_err(|error| error.to_string())?;
        let sizes = |member: &Member| {
            let [w, u, bias] = [&member.w, &member.u, &member.bias].map(Vec::len);
            (w, u, bias) == (3 * HIDDEN * FEATURES, 3 * HIDDEN * HIDDEN, 3 * HIDDEN)
        };
        let empty = loaded.members.is_empty() && loaded.heads.is_empty();
        let counts = (loaded.members.len(), loaded.heads.len());
        let whole = counts == (MEMBERS, HEADS * COMBINED) && loaded.members.iter().all(sizes);
        if !(empty || whole) {
            return Err("an ensemble of other sizes".into());
        }
        *self = loaded;
        Ok(())
    }
}

/// The initial state of every member: the tanh of the features.
fn latent(features: &[f32]) -> Vec<f32> {
    features.iter().take(HIDDEN).map(|x| x.tanh()).collect()
}

/// A layer group's share, 0.1 to 0.9, of its scale, 0.1 to 2.
fn share(scale: f64) -> f64 {
    0.1 + 0.8 * (scale - 0.1) / 1.9
}

/// The other way.
fn scale(share: f64) -> f64 {
    (0.1 + 1.9 * (share - 0.1) / 0.8).max(0.0)
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

#[cfg(test)]
mod tests {
    use super::super::super::observation::tests::observation;
    use super::*;

    #[test]
    fn it_learns_losses_and_multiples() {
        let mut rssm = Rssm::default();
        let mut seen = observation([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.5, 0.0]]);
        for i in 0..FEATURES {
            seen.features[i] = (i as f32).sin();
        }
        seen.loss = 0.3;
        let error = |rssm: &Rssm| {
            let features: Vec<f64> = seen.features.iter().map(|x| f64::from(*x)).collect();
            let start: Vec<f64> = latent(&seen.features).into_iter().map(f64::from).collect();
            let head = &rssm.heads[..COMBINED];
            let step = rssm.members[0].forward(head, &start, &features, 1);
            (step[0].loss - 0.3).abs()
        };
        rssm.learn(&seen, &seen);
        let first = error(&rssm);
        for _ in 0..400 {
            rssm.history.clear();
            rssm.learn(&seen, &seen);
        }
        assert!(error(&rssm) < 0.2 * first, "{} {first}", error(&rssm));
        let before = rssm.predict(&seen, 1.0)[0][3] * 3.0;
        assert!((0.4..1.0).contains(&before), "{before}");
        let mut copy = Rssm::default();
        copy.load(rssm.save()).unwrap();
        assert_eq!(copy, rssm);
        copy.learn(&seen, &seen);
        rssm.learn(&seen, &seen);
        assert_eq!(copy, rssm);
        let mut saved = rssm.save();
        saved["heads"] = serde_json::json!([1.0]);
        assert!(copy.load(saved).is_err());
    }

    /// The rollout of the kernels and the steps that are learned from are the same.
    #[test]
    fn members_do_what_the_kernels_do() {
        let mut rssm = Rssm::default();
        rssm.start();
        let mut seen = observation([[1.0, 0.0]; 4]);
        seen.features[0] = seen.loss as f32;
        let found = rssm.outputs(&seen, 3).unwrap();
        let features: Vec<f64> = seen.features.iter().map(|x| f64::from(*x)).collect();
        let start: Vec<f64> = latent(&seen.features).into_iter().map(f64::from).collect();
        let (head, deltas) = rssm.heads.split_at(COMBINED);
        for k in 0..DELTAS {
            let row = &deltas[k * COMBINED..][..COMBINED];
            let own = rssm.members.iter().map(|member| {
                let v = member.forward(head, &start, &features, 3)[2].combined();
                row.iter()
                    .zip(&v)
                    .map(|(w, v)| f64::from(*w) * v)
                    .sum::<f64>()
            });
            let mean = own.sum::<f64>() / MEMBERS as f64;
            assert!((mean - found[k]).abs() < 1e-5, "{mean} {}", found[k]);
        }
    }

    #[test]
    fn broken_observations_teach_nothing() {
        let mut rssm = Rssm::default();
        let mut seen = observation([[1.0, 0.0]; 4]);
        seen.loss = f64::NAN;
        rssm.learn(&seen, &seen);
        assert_eq!(rssm, Rssm::default());
        assert!((scale(share(1.7)) - 1.7).abs() < 1e-12);
    }
}
