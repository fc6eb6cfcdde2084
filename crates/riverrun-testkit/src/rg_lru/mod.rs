//! The gates of the RG-LRU, forward and every gradient.
//!
//! A bias moves the sigmoid's argument by one rounding of at most 5, and the exponential multiplies that; each of the products
//! adds one. No factor is above 1, so 16 roundings of 1 bound a number, and a sum over rows has as many again for each row, and
//! one of each partial sum.

pub mod oracle;

pub use riverrun_kernels::rg_lru::*;

use crate::{
    Case, CpuElement, Element, Error, Failure, Operation, Part, Random, Report, Storage, Tensors,
    by_storage, roundings, stored, wide,
};

/// The entry in the table.
pub const OPERATION: Operation = Operation {
    name: "rg-lru",
    about: "The gates of the RG-LRU",
    storages: &Storage::ALL,
    forms: |_| vec!["rg-lru gates"],
    check: |part, report| by_storage!(part.storage, check(part, report)),
    weight: 1,
    shared: None,
    long: None,
};

/// With and without a bias and steps that restart, few rows and several runs of them.
fn check<E: CpuElement>(part: &Part<'_>, report: &mut dyn Report) -> Result<(), Failure> {
    let shapes = [[1, 1, 1], [2, 9, 3], [3, 70, 24], [2, 150, 520]].into_iter();
    let cases = shapes.enumerate().map(|(n, shape)| Gates::random(shape, n));
    #[cfg(feature = "ops")]
    part.run_ops::<E, _>(part.form, cases.clone().map(Gates::on_tensors), report)?;
    part.run_all::<E, _>(part.form, cases, report)
}

/// A problem and its data, in `f64`: see the [formulas](riverrun_kernels::rg_lru).
#[derive(Debug, Clone)]
pub struct Gates {
    /// Sizes, and which steps restart.
    pub problem: Problem,
    /// The inputs; a bias that is not given is 0.
    pub inputs: oracle::Inputs,
    /// Whether there is a bias.
    pub biased: bool,
    /// `[B, T, 2 D]`.
    pub d_out: Vec<f64>,
    /// Whether there is a gradient of a bias that is not given.
    pub of_zeros: bool,
}

impl Gates {
    /// Random data; combination `n` of options.
    pub fn random([batch, steps, dim]: [usize; 3], n: usize) -> Self {
        let problem = Problem {
            batch,
            steps,
            dim,
            forget: n % 2 == 1,
            first: n > 1,
        };
        let (mut random, all) = (Random::new(n as u64), problem.elements());
        let biased = n != 2;
        let inputs = oracle::Inputs {
            p: random.vec(all, 4.0),
            q: random.vec(all, 4.0),
            x: random.vec(all, 1.0),
            bias: random.vec(2 * dim, f64::from(u8::from(biased))),
            rate: random.vec(dim, 1.0).iter().map(|x| x.abs()).collect(),
            reset: (0..problem.rows()).map(|i| i % 5 == 2).collect(),
        };
        Self {
            problem,
            inputs,
            biased,
            d_out: random.vec(2 * all, 1.0),
            of_zeros: true,
        }
    }

    /// The problem for the operation on tensors, which have a gradient if they are given.
    #[cfg(feature = "ops")]
    fn on_tensors(self) -> Self {
        let of_zeros = false;
        Self { of_zeros, ..self }
    }

    fn reset(&self) -> Option<&[bool]> {
        self.problem.forget.then_some(&self.inputs.reset[..])
    }

    /// The lengths of the gates and of the gradients.
    fn lengths(&self) -> [usize; 6] {
        let (all, dim) = (self.problem.elements(), self.problem.dim);
        [2 * all, all, all, all, 2 * dim, dim]
    }

    fn tensors(&self, all: [Vec<f64>; 6]) -> Tensors {
        const NAMES: [&str; 6] = ["gates", "d_p", "d_q", "d_x", "d_bias", "d_rate"];
        let has = |name: &str| name != "d_bias" || self.of_zeros || self.biased;
        Tensors::new(NAMES.into_iter().zip(all).filter(|(name, _)| has(name)))
    }
}

impl Case for Gates {
    fn numbers(&mut self) -> Vec<&mut Vec<f64>> {
        let oracle::Inputs {
            p,
            q,
            x,
            bias,
            rate,
            ..
        } = &mut self.inputs;
        vec![p, q, x, bias, rate, &mut self.d_out]
    }

    fn oracle<E: Element>(&self) -> Tensors {
        let d = self.inputs.backward(&self.problem, &self.d_out);
        let gates = self.inputs.forward(&self.problem);
        self.tensors([gates, d.p, d.q, d.x, d.bias, d.rate])
    }

    fn allowed<E: Element>(&self, truth: &Tensors) -> Tensors {
        let (storage, arithmetic) = roundings::<E>();
        let rows = self.problem.rows() as f64;
        truth.map(|name, _, truth| {
            let error = match name {
                "d_bias" | "d_rate" => rows * (16.0 + rows),
                _ => 16.0,
            };
            storage(truth) + error * arithmetic
        })
    }

    fn cpu<E: CpuElement>(&self) -> Result<Tensors, Error> {
        let given = &self.inputs;
        let [p, q, x, bias, rate] =
            [&given.p, &given.q, &given.x, &given.bias, &given.rate].map(|x| stored::<E>(x));
        let inputs = cpu::Inputs {
            p: &p,
            q: &q,
            x: &x,
            bias: self.biased.then_some(&bias[..]),
            rate: &rate,
            reset: self.reset(),
        };
        let mut found = self.lengths().map(|n| vec![E::from_f64(f64::NAN); n]);
        let [gates, p, q, x, bias, rate] = &mut found;
        cpu::forward(&self.problem, inputs, gates)?;
        let d = cpu::Gradients {
            p,
            q,
            x,
            bias,
            rate,
        };
        cpu::backward(&self.problem, inputs, &stored::<E>(&self.d_out), d)?;
        Ok(self.tensors(found.map(|x| wide(&x))))
    }

    #[cfg(feature = "gpu")]
    fn gpu(
        &self,
        client: &cubecl::client::Client,
        dtype: riverrun_kernels::gpu::Dtype,
    ) -> Result<Tensors, Error> {
        use crate::transfer;
        let upload = |data: &[f64]| transfer::upload(client, dtype, data);
        let given = &self.inputs;
        let inputs = gpu::Inputs {
            p: upload(&given.p),
            q: upload(&given.q),
            x: upload(&given.x),
            bias: self.biased.then(|| upload(&given.bias)),
            rate: upload(&given.rate),
            reset: self.reset().map(|reset| upload(&crate::marks(reset))),
        };
        let found = self
            .lengths()
            .map(|n| (transfer::poison(client, dtype, n), n));
        let [gates, p, q, x, bias, rate] = found.clone().map(|(handle, _)| handle);
        gpu::forward(client, &self.problem, dtype, &inputs, &gates)?;
        let d = gpu::Gradients {
            p,
            q,
            x,
            bias,
            rate,
        };
        gpu::backward(
            client,
            &self.problem,
            dtype,
            &inputs,
            &upload(&self.d_out),
            &d,
        )?;
        let download = |(handle, n)| transfer::download(client, dtype, handle, n);
        Ok(self.tensors(found.map(download)))
    }

    #[cfg(feature = "ops")]
    fn op<E: Element>(&self, on: &crate::op::Place) -> Result<Tensors, Failure> {
        use crate::op::{download, gradient};
        let Problem {
            batch, steps, dim, ..
        } = self.problem;
        let given = &self.inputs;
        let inputs = [&given.p, &given.q, &given.x].map(|x| on.leaf(x, [batch, steps, dim]));
        let bias = self.biased.then(|| on.leaf(&given.bias, [2 * dim]));
        let rate = on.leaf(&given.rate, [dim]);
        let restarts = self.reset().map(|marks| on.mask(marks, [batch, steps]));
        let options = (self.problem.first, restarts);
        let gates =
            riverrun::ops::rg_lru_gates(inputs.clone(), bias.clone(), rate.clone(), options)?;
        let d_out = on.tensor(&self.d_out, [batch, steps, 2 * dim]);
        let gradients = (gates.clone() * d_out).sum().backward();
        let [p, q, x] = inputs.map(|leaf| gradient(&leaf, &gradients));
        let bias = bias.map_or_else(Vec::new, |bias| gradient(&bias, &gradients));
        let rate = gradient(&rate, &gradients);
        Ok(self.tensors([download(gates), p, q, x, bias, rate]))
    }
}
