//! Random ensembles, and the rule that accepts a result.
//!
//! ```text
//! max |found - reference| <= 2 max |textbook - reference| + ε √(Y H) · max |reference|
//! ```
//!
//! over each array, where `textbook` is the sequential computation in `f32`. A fast form orders its sums differently but rounds
//! no more often, so it may have twice the textbook's error; the floor is the sum of independent roundings of sums of `H` terms
//! over `Y` steps, for cases where the textbook is accurate by luck. Trajectories of [`Decode::LogLoss`](super::Decode) are
//! compared as logarithms, of which a step computes the exponential.

use super::{Arguments, Decode, Outcome, Problem, cpu, oracle};
use crate::Error;
use crate::check::{Comparison, Random, distance, largest};

/// A rollout with random weights.
#[derive(Debug, Clone)]
pub struct Case {
    /// The sizes.
    pub problem: Problem,
    arrays: [Vec<f32>; 7],
}

fn arguments<'a, R>([w, u, bias, heads, h0, features, loss]: [&'a [R]; 7]) -> Arguments<'a, R> {
    Arguments {
        w,
        u,
        bias,
        heads,
        h0,
        features,
        loss,
    }
}

impl Case {
    /// Weights uniform within `1/√H` (for inputs `1/√I`), a loss of about 2, states in (-1, 1).
    pub fn random(problem: Problem, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let h = (problem.hidden as f64).sqrt().recip();
        let i = (problem.features as f64).sqrt().recip();
        let bounds = [i, h, 0.5, h, 1.0, 1.0, 0.0];
        let mut n = 0;
        let mut arrays = problem.lengths().map(|(_, length)| {
            let bound = bounds[n];
            n += 1;
            random
                .vec(length, bound)
                .into_iter()
                .map(|x| x as f32)
                .collect::<Vec<f32>>()
        });
        arrays[5][0] = 2.0;
        arrays[6][0] = 2.0;
        Self { problem, arrays }
    }

    /// The arrays, in the order of [`Arguments`], to change.
    pub fn arrays_mut(&mut self) -> &mut [Vec<f32>; 7] {
        &mut self.arrays
    }

    /// The arrays.
    pub fn arguments(&self) -> Arguments<'_, f32> {
        arguments(std::array::from_fn(|n| &self.arrays[n][..]))
    }

    /// The oracle's results.
    ///
    /// # Errors
    /// Those of the oracle.
    pub fn oracle(&self) -> Result<Outcome<f64>, Error> {
        let arrays: [Vec<f64>; 7] =
            std::array::from_fn(|n| self.arrays[n].iter().map(|x| f64::from(*x)).collect());
        oracle::run(
            &self.problem,
            arguments(std::array::from_fn(|n| &arrays[n][..])),
        )
    }

    /// The textbook's results, in `f32`.
    ///
    /// # Errors
    /// Those of the form.
    pub fn textbook(&self) -> Result<Outcome<f32>, Error> {
        oracle::run(&self.problem, self.arguments())
    }

    /// The CPU kernel's results.
    ///
    /// # Errors
    /// Those of the form.
    pub fn cpu(&self) -> Result<Outcome<f32>, Error> {
        cpu::run(&self.problem, self.arguments())
    }

    /// The GPU kernels' results; `routine` as in [`gpu::run`](super::gpu::run). Results are filled with NaN first.
    ///
    /// # Errors
    /// Those of the kernels.
    #[cfg(feature = "gpu")]
    pub fn gpu(
        &self,
        client: &cubecl::client::Client,
        routine: Option<super::gpu::Routine>,
    ) -> Result<Outcome<f32>, Error> {
        use crate::gpu::Dtype;
        use crate::transfer::download;
        let length = self.problem.members * self.problem.row();
        let args = self.upload(client);
        super::gpu::run(client, &self.problem, &args, routine)?;
        let rows: Vec<f32> = download(client, Dtype::F32, args.rows, length)
            .into_iter()
            .map(|x| x as f32)
            .collect();
        Ok(Outcome::from_rows(&self.problem, &rows))
    }

    /// The case on a device, with results filled with NaN.
    #[cfg(feature = "gpu")]
    pub fn upload(&self, client: &cubecl::client::Client) -> super::gpu::Buffers {
        use crate::transfer::poison;
        let up = |n: usize| match self.arrays[n].is_empty() {
            true => client.empty(4),
            false => client.create_from_slice(bytemuck::cast_slice(&self.arrays[n])),
        };
        super::gpu::Buffers {
            w: up(0),
            u: up(1),
            bias: up(2),
            heads: up(3),
            h0: up(4),
            features: up(5),
            loss: up(6),
            rows: poison(
                client,
                crate::gpu::Dtype::F32,
                self.problem.members * self.problem.row(),
            ),
        }
    }

    /// Compares every array of `found`.
    ///
    /// # Errors
    /// Those of the oracle.
    pub fn compare(&self, found: &Outcome<f32>) -> Result<Vec<Comparison>, Error> {
        let p = self.problem;
        let (reference, textbook) = (self.oracle()?, self.textbook()?);
        let floor = f64::from(f32::EPSILON) * ((p.steps.max(1) * p.hidden) as f64).sqrt();
        let log = |name: &str| name == "trajectory" && p.decode == Decode::LogLoss;
        let wide = |x: &[f32], name: &str| -> Vec<f64> {
            let x = x.iter().map(|x| f64::from(*x));
            if log(name) {
                x.map(f64::ln).collect()
            } else {
                x.collect()
            }
        };
        let all = found.named().into_iter().zip(textbook.named());
        Ok(all
            .zip(reference.named())
            .map(|(((name, found), (_, textbook)), (_, reference))| {
                let reference: Vec<f64> = match log(name) {
                    true => reference.iter().map(|x| x.ln()).collect(),
                    false => reference.to_vec(),
                };
                let scale = largest(reference.iter().map(|x| x.abs()));
                Comparison {
                    tensor: name.into(),
                    error: distance(&wide(found, name), &reference),
                    allowed: 2.0 * distance(&wide(textbook, name), &reference)
                        + floor * scale.max(1.0),
                }
            })
            .collect())
    }
}
