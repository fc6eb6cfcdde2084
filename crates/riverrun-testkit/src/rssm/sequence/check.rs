//! Random cases, run on a GPU and compared with the oracle.
//!
//! ```text
//! max |found - reference| <= 2 max |rounded - reference| + floor · max |reference|
//! ```
//!
//! over `d` and over the logits, where all three take the samples that were found: `rounded` is the oracle with each stored number
//! rounded to storage. A fast form may round elsewhere but no more often. **Floor**: sums of up to `n` terms in `f32` in each of
//! seven products of `T` steps, and as many elementary functions, `ε √(7 T n)`; storage in 16 bits rounds 8 times a step, by `ε/2`
//! at most: `ε/2 √(8 T)`.
//!
//! Backward, the same rule for the gradient of every layer's values, over the scale of all of them in the case of the initial state,
//! into which all steps run.
//!
//! A draw passes if the score of its class is the highest but for the errors of the logits of its step.

use cubecl::client::Client;
use cubecl::server::Handle;

use super::oracle::{self, Gradients, Inputs, Saved};
use super::{Problem, Weights, gpu};
use crate::check::{Comparison, Random, distance, largest, rounded};
use crate::gpu::Dtype;
use crate::rssm::Draw;
use crate::transfer::{numbers, upload};
use crate::{Element, Error};

/// A problem and its inputs.
#[derive(Debug, Clone)]
pub struct Case {
    /// The sizes.
    pub problem: Problem,
    /// All inputs.
    pub inputs: Inputs,
}

impl Case {
    /// Random inputs, as storage type `E` holds them; of every fifth step, a reset if there are any.
    pub fn random<E: Element>(problem: Problem, resets: bool, seed: u64) -> Self {
        let mut rng = Random::new(seed);
        let mut some = |n: usize, bound: f64| rounded::<E>(&rng.vec(n, bound));
        let (b, rows) = (problem.batch, problem.rows());
        let (d, h, l) = (problem.deter, problem.hidden, problem.logits());
        let weights = Weights::make(&problem, |what, n| {
            let depth = match what {
                "deter" | "posterior" => d,
                "stoch" => problem.stoch,
                "blocks" | "gates" => problem.width(),
                "inputs" => 2 * h,
                "logits" => h,
                _ => 1,
            };
            let mut values = some(n, 1.5 / (depth as f64).sqrt());
            if what.ends_with("norm") {
                values.iter_mut().for_each(|gamma| *gamma += 1.0);
                values = rounded::<E>(&values);
            }
            Ok::<_, Error>(values)
        })
        .expect("nothing that fails");
        let (d0, s0) = (some(b * d, 1.0), some(b * l, 1.0));
        let (actions, tokens) = (some(rows * d, 1.0), some(rows * h, 1.0));
        let noise = rng.vec(rows * l, 1.0);
        let gumbel = |x: &f64| -(-(0.5 + 0.499 * x).ln()).ln();
        let inputs = Inputs {
            d0,
            s0,
            actions,
            tokens,
            noise: rounded::<f32>(&noise.iter().map(gumbel).collect::<Vec<_>>()),
            reset: resets.then(|| (0..rows).map(|_| rng.below(5) == 0).collect()),
            weights,
        };
        Self { problem, inputs }
    }

    /// The states that one launch writes.
    ///
    /// # Errors
    /// The errors of the launch.
    ///
    /// # Panics
    /// Where the result cannot be read.
    pub fn gpu(&self, client: &Client, dtype: Dtype) -> Result<Vec<f64>, Error> {
        let n = self.problem.rows() * self.problem.row();
        let inputs = &self.inputs;
        let noise = |client| upload(client, Dtype::F32, &inputs.noise);
        let upload = |data: &[f64]| upload(client, dtype, data);
        let reset = |reset: &Vec<bool>| -> Vec<f64> {
            reset.iter().map(|x| f64::from(u8::from(*x))).collect()
        };
        let args = gpu::Forward {
            d0: upload(&inputs.d0),
            s0: upload(&inputs.s0),
            actions: upload(&inputs.actions),
            tokens: upload(&inputs.tokens),
            noise: noise(client),
            reset: inputs.reset.as_ref().map(|x| upload(&reset(x))),
            weights: inputs.weights.map(|x| upload(x)),
            states: upload(&vec![f64::NAN; n.max(8)]),
        };
        gpu::forward(client, &self.problem, dtype, &args)?;
        let bytes = client.read_one(args.states).expect("reading a result back");
        Ok(numbers(dtype, &bytes[..n * dtype.size()]))
    }

    /// The samples `[B·T, L]` that the kernel of a single step draws from the logits of these states.
    ///
    /// # Errors
    /// The errors of the launches.
    ///
    /// # Panics
    /// Where a result cannot be read.
    pub fn redrawn(
        &self,
        client: &Client,
        dtype: Dtype,
        states: &[f64],
    ) -> Result<Vec<f64>, Error> {
        let p = &self.problem;
        let (batch, l) = (p.batch, p.logits());
        let logits = self.columns(states, p.deter + l..p.row());
        let noise = upload(client, Dtype::F32, &self.inputs.noise);
        let draw = Draw {
            rows: batch * p.stoch,
            classes: p.classes,
            unimix: p.unimix,
        };
        let mut samples = vec![f64::NAN; logits.len()];
        for t in 0..p.steps {
            let rows = || (0..batch).map(|b| (b * p.steps + t) * l);
            let step: Vec<f64> = rows().flat_map(|at| logits[at..at + l].to_vec()).collect();
            let [given, drawn] = [0, 1].map(|_| upload(client, dtype, &step));
            super::super::gpu::draw(client, dtype, draw, &given, (&noise, t), &drawn)?;
            let bytes = client.read_one(drawn).expect("reading a result back");
            let found = numbers(dtype, &bytes[..step.len() * dtype.size()]);
            for (at, row) in rows().zip(found.chunks(l)) {
                samples[at..at + l].copy_from_slice(row);
            }
        }
        Ok(samples)
    }

    /// Columns of states, `[B·T, ..]`.
    pub fn columns(&self, states: &[f64], range: std::ops::Range<usize>) -> Vec<f64> {
        let rows = states.chunks(self.problem.row().max(1));
        rows.flat_map(|row| row[range.clone()].to_vec()).collect()
    }

    /// The states found beside the oracle.
    pub fn compare<E: Element>(&self, found: &[f64]) -> Vec<Comparison> {
        let p = &self.problem;
        let (d, l) = (p.deter, p.logits());
        let (exact, scores) = oracle::forward(p, &self.inputs, |x| x, Some(found));
        let round = |x: f64| E::from_f64(x).to_f64();
        let (stored, _) = oracle::forward(p, &self.inputs, round, Some(found));
        let floor = self.floor::<E>();
        let mut all = Vec::new();
        for (tensor, range) in [("d", 0..d), ("logits", d + l..d + 2 * l)] {
            let of = |states: &[f64]| self.columns(states, range.clone());
            let reference = of(&exact);
            let scale = largest(reference.iter().map(|x| x.abs()));
            all.push(Comparison {
                tensor: tensor.into(),
                error: distance(&of(found), &reference),
                allowed: 2.0 * distance(&of(&stored), &reference) + floor * scale,
            });
        }
        // A probability is off by at most twice as much, relatively, as the logits are, absolutely.
        let allowed = 4.0 * all[1].allowed;
        let samples = self.columns(found, d..d + l);
        let gap = |(sample, scores): (&[f64], &[f64])| {
            let ones = sample.iter().filter(|x| **x == 1.0).count();
            let zeros = sample.iter().filter(|x| **x == 0.0).count();
            if ones != 1 || ones + zeros != p.classes {
                return f64::NAN;
            }
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let taken = sample.iter().position(|x| *x == 1.0);
            most - taken.map_or(f64::NAN, |class| scores[class])
        };
        let draws = samples.chunks(p.classes).zip(scores.chunks(p.classes));
        all.push(Comparison {
            tensor: "samples".into(),
            error: largest(draws.map(gap)),
            allowed,
        });
        all
    }

    /// The gradients that one launch writes, from the layers' values of the oracle and random gradients of the states.
    ///
    /// # Errors
    /// The errors of the launch.
    ///
    /// # Panics
    /// Where a result cannot be read.
    pub fn gpu_backward<E: Element>(
        &self,
        client: &Client,
        dtype: Dtype,
        states: &[f64],
    ) -> Result<Gradients, Error> {
        let p = &self.problem;
        let (d_states, saved) = self.given_backward::<E>(states);
        let upload = |data: &[f64]| upload(client, dtype, data);
        let poison = |n: usize| upload(&vec![f64::NAN; n.max(8)]);
        let (b, rows) = (p.batch, p.rows());
        let (d, h, l) = (p.deter, p.hidden, p.logits());
        let reset = |reset: &Vec<bool>| -> Vec<f64> {
            reset.iter().map(|x| f64::from(u8::from(*x))).collect()
        };
        let to = gpu::Gradients {
            deter: poison(rows * h),
            stoch: poison(rows * h),
            hidden: poison(rows * d),
            gates: poison(rows * 3 * d),
            posterior: poison(rows * h),
            logits: poison(rows * l),
            d0: poison(b * d),
            s0: poison(b * l),
        };
        let args = gpu::Backward {
            states: upload(states),
            d_states: upload(&d_states),
            reset: self.inputs.reset.as_ref().map(|x| upload(&reset(x))),
            before: upload(&saved.before),
            deter: upload(&saved.e[0]),
            stoch: upload(&saved.e[1]),
            hidden: upload(&saved.x),
            gates: upload(&saved.gates),
            posterior: upload(&saved.p),
            weights: self.inputs.weights.map(|x| upload(x)),
            gradients: to.clone(),
        };
        gpu::backward(client, p, dtype, &args)?;
        let download = |handle: Handle, n: usize| {
            let bytes = client.read_one(handle).expect("reading a result back");
            numbers(dtype, &bytes[..n * dtype.size()])
        };
        Ok(Gradients {
            e: [download(to.deter, rows * h), download(to.stoch, rows * h)],
            hidden: download(to.hidden, rows * d),
            gates: download(to.gates, rows * 3 * d),
            posterior: download(to.posterior, rows * h),
            logits: download(to.logits, rows * l),
            d0: download(to.d0, b * d),
            s0: download(to.s0, b * l),
        })
    }

    /// Gradients of the states, and the layers' values, as storage type `E` holds them.
    fn given_backward<E: Element>(&self, states: &[f64]) -> (Vec<f64>, Saved) {
        let d_states = rounded::<E>(&Random::new(77).vec(states.len(), 1.0));
        let round = |x: f64| E::from_f64(x).to_f64();
        (
            d_states,
            oracle::saved(&self.problem, &self.inputs, states, round),
        )
    }

    /// The gradients found beside the oracle.
    pub fn compare_backward<E: Element>(
        &self,
        states: &[f64],
        found: &Gradients,
    ) -> Vec<Comparison> {
        let (d_states, saved) = self.given_backward::<E>(states);
        let run = |round: &dyn Fn(f64) -> f64| {
            oracle::backward(
                &self.problem,
                &self.inputs,
                &saved,
                states,
                &d_states,
                round,
            )
        };
        let (exact, stored) = (run(&|x| x), run(&|x| E::from_f64(x).to_f64()));
        let floor = self.floor::<E>();
        let scale = |x: &[f64]| largest(x.iter().map(|x| x.abs()));
        let all = largest(exact.named().iter().map(|(_, x)| scale(x)));
        let tensors = found.named().into_iter().zip(exact.named());
        tensors
            .zip(stored.named())
            .map(|(((tensor, found), (_, exact)), (_, stored))| {
                let scale = match tensor {
                    "d0" | "s0" => all,
                    _ => scale(exact),
                };
                Comparison {
                    tensor: tensor.into(),
                    error: distance(found, exact),
                    allowed: 2.0 * distance(stored, exact) + floor * scale,
                }
            })
            .collect()
    }

    /// See the module.
    fn floor<E: Element>(&self) -> f64 {
        let p = &self.problem;
        let terms = (2 * p.hidden).max(p.deter) as f64;
        let steps = p.steps.max(1) as f64;
        let sums = f64::from(f32::EPSILON) * (7.0 * steps * terms).sqrt();
        match E::EPSILON > f64::from(f32::EPSILON) {
            true => sums + E::EPSILON / 2.0 * (8.0 * steps).sqrt(),
            false => sums,
        }
    }
}
