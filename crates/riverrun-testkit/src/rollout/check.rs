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
use crate::check::{Comparison, Random, distance, largest};
use crate::{Case as _, CpuElement, Element, Error, Tensors};

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
    /// The errors of the oracle.
    pub fn oracle(&self) -> Result<Outcome<f64>, Error> {
        let arrays = self.arrays.each_ref();
        let arrays = arrays.map(|x| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>());
        oracle::run(&self.problem, arguments(arrays.each_ref().map(|x| &x[..])))
    }

    /// The CPU kernel's results.
    ///
    /// # Errors
    /// The errors of the form.
    pub fn cpu(&self) -> Result<Outcome<f32>, Error> {
        cpu::run(&self.problem, self.arguments())
    }

    /// The GPU kernels' results; `routine` as in [`gpu::run`](super::gpu::run). Results are filled with NaN first.
    ///
    /// # Errors
    /// The errors of the kernels.
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

    /// The arrays by name; trajectories of [`Decode::LogLoss`] as logarithms.
    pub fn tensors<R: Copy + Into<f64>>(&self, found: &Outcome<R>) -> Tensors {
        let log = |name| name == "trajectory" && self.problem.decode == Decode::LogLoss;
        Tensors::new(found.named().into_iter().map(|(name, x)| {
            let x = x.iter().map(|&x| x.into());
            let ln = |x: f64| if log(name) { x.ln() } else { x };
            (name, x.map(ln).collect())
        }))
    }

    /// Compares every array of `found`.
    ///
    /// # Errors
    /// The errors of the oracle.
    pub fn compare(&self, found: &Outcome<f32>) -> Result<Vec<Comparison>, Error> {
        self.arguments().check(&self.problem)?;
        Ok(self.compared::<f32>(&self.tensors(found)))
    }
}

impl crate::Case for Case {
    /// The arrays are in the one storage type already.
    fn numbers(&mut self) -> Vec<&mut Vec<f64>> {
        vec![]
    }

    fn oracle<E: Element>(&self) -> Tensors {
        self.tensors(&Case::oracle(self).expect("arrays that fit"))
    }

    fn allowed<E: Element>(&self, truth: &Tensors) -> Tensors {
        let p = self.problem;
        let textbook = oracle::run(&p, self.arguments()).expect("arrays that fit");
        let textbook = self.tensors(&textbook);
        let floor = f64::from(f32::EPSILON) * ((p.steps.max(1) * p.hidden) as f64).sqrt();
        Tensors::new(truth.iter().map(|(name, truth)| {
            let scale = largest(truth.iter().map(|x| x.abs())).max(1.0);
            let allowed = 2.0 * distance(textbook.get(name), truth) + floor * scale;
            (name, vec![allowed; truth.len()])
        }))
    }

    fn cpu<E: CpuElement>(&self) -> Result<Tensors, Error> {
        Ok(self.tensors(&Case::cpu(self)?))
    }

    #[cfg(feature = "gpu")]
    fn gpu(
        &self,
        client: &cubecl::client::Client,
        _: riverrun_kernels::gpu::Dtype,
    ) -> Result<Tensors, Error> {
        Ok(self.tensors(&Case::gpu(self, client, None)?))
    }
}
