//! GELU, alone and as a gate, forward and backward.
//!
//! A kernel passes within one rounding to storage and 16 roundings of the arithmetic: σ is right to 4 ulp, and the slope is a
//! difference near -0.75. A form of several tensor operations has the same of the largest terms, which cancel far below 0: x in
//! the function, x³ in its slope; as a gate, GELU and the product are rounded to storage on their own.

pub mod check;
pub mod oracle;

pub use riverrun_kernels::gelu::*;

use crate::{
    Case, CpuElement, Element, Error, Failure, Operation, Part, Random, Report, Storage, Tensors,
    by_storage, roundings, stored, wide,
};

/// The entry in the table.
pub const OPERATION: Operation = Operation {
    name: "gelu",
    about: "GELU",
    storages: &Storage::ALL,
    forms: |target| match (target.is_cpu(), cfg!(feature = "ops")) {
        (_, true) => vec!["gelu", "geglu"],
        (true, false) => vec!["gelu"],
        (false, false) => vec![],
    },
    check: |part, report| by_storage!(part.storage, check(part, report)),
    weight: 0,
    shared: None,
    long: None,
};

fn check<E: CpuElement>(part: &Part<'_>, report: &mut dyn Report) -> Result<(), Failure> {
    let counts = [0, 1, 31, 33, 1000, 40_000].into_iter().enumerate();
    let cases = counts.map(|(seed, count)| Gelu::random(count, seed as u64));
    #[cfg(feature = "ops")]
    {
        let composed = cases.clone().skip(1).map(|case| Gelu {
            x: (part.form == "geglu")
                .then(|| Random::new(case.gate.len() as u64).vec(case.gate.len(), 1.0)),
            composed: true,
            ..case
        });
        part.run_ops::<E, _>(part.form, composed, report)?;
    }
    match part.form {
        "gelu" if part.target.is_cpu() => part.run_all::<E, _>(part.form, cases, report),
        _ => Ok(()),
    }
}

/// A problem and its data, in `f64`.
#[derive(Debug, Clone)]
pub struct Gelu {
    /// The argument of GELU.
    pub gate: Vec<f64>,
    /// What GELU is a factor of, if it is a gate.
    pub x: Option<Vec<f64>>,
    /// `∂L/∂y`.
    pub d_y: Vec<f64>,
    /// Whether the form may be one of several tensor operations.
    pub composed: bool,
}

impl Gelu {
    /// Mostly near 0, where the function is curved, some at 0 and some far out.
    pub fn random(count: usize, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let scale = |i: usize| match i % 37 {
            5 => 0.0,
            11 => 20.0,
            _ if i.is_multiple_of(11) => 18.0,
            _ => 3.0,
        };
        let gate = (0..count).map(|i| scale(i) * random.within(1.0)).collect();
        Self {
            gate,
            x: None,
            d_y: (0..count).map(|i| scale(i) * random.within(1.0)).collect(),
            composed: false,
        }
    }

    /// The result and the gradients of the inputs.
    fn tensors(&self, y: Vec<f64>, d_gate: Vec<f64>, d_x: Option<Vec<f64>>) -> Tensors {
        let gate = if d_x.is_some() { "d_gate" } else { "d_x" };
        let all = [("y", y), (gate, d_gate)];
        Tensors::new(all.into_iter().chain(d_x.map(|d_x| ("d_x", d_x))))
    }

    /// What GELU is multiplied by, and its gradient by.
    fn factor(&self, i: usize) -> f64 {
        self.x.as_ref().map_or(1.0, |x| x[i])
    }
}

impl Case for Gelu {
    fn numbers(&mut self) -> Vec<&mut Vec<f64>> {
        let mut all = vec![&mut self.gate, &mut self.d_y];
        all.extend(&mut self.x);
        all
    }

    fn oracle<E: Element>(&self) -> Tensors {
        let active = oracle::forward(&self.gate);
        let by = |numbers: &[f64], f: &dyn Fn(usize) -> f64| -> Vec<f64> {
            numbers.iter().enumerate().map(|(i, x)| x * f(i)).collect()
        };
        let products = by(&self.d_y, &|i| self.factor(i));
        let d_x = self.x.as_ref().map(|_| by(&active, &|i| self.d_y[i]));
        let y = by(&active, &|i| self.factor(i));
        self.tensors(y, oracle::backward(&self.gate, &products), d_x)
    }

    fn allowed<E: Element>(&self, truth: &Tensors) -> Tensors {
        let (storage, arithmetic) = roundings::<E>();
        let terms = 16.0 * arithmetic;
        truth.map(|name, i, truth| {
            let x = self.gate[i];
            let steep = self.d_y[i].abs() * (1.0 + x.abs() + 0.05 * x.abs().powi(3));
            match (name, &self.x) {
                ("y", None) if self.composed => storage(truth) + terms * (1.0 + x.abs()),
                ("y", None) => storage(truth) + terms * (0.1 + truth.abs()),
                (_, None) if self.composed => storage(truth) + terms * steep,
                (_, None) => storage(truth) + terms * steep.min(20.0 + truth.abs()),
                ("d_gate", Some(x)) => 2.0 * storage(truth) + terms * steep * x[i].abs(),
                (name, Some(other)) => {
                    let factor = if name == "y" { other[i] } else { self.d_y[i] };
                    let near = terms * (1.0 + x.abs()) * factor.abs();
                    2.0 * storage(truth) + arithmetic * truth.abs() + near
                }
            }
        })
    }

    fn cpu<E: CpuElement>(&self) -> Result<Tensors, Error> {
        let [x, d_y] = [&self.gate, &self.d_y].map(|x| stored::<E>(x));
        let mut found = [(); 2].map(|()| vec![E::from_f64(f64::NAN); x.len()]);
        cpu::forward(&x, &mut found[0])?;
        cpu::backward(&x, &d_y, &mut found[1])?;
        let [y, d_x] = found.map(|x| wide(&x));
        Ok(self.tensors(y, d_x, None))
    }

    #[cfg(feature = "gpu")]
    fn gpu(
        &self,
        _: &cubecl::client::Client,
        _: riverrun_kernels::gpu::Dtype,
    ) -> Result<Tensors, Error> {
        Err(Error::Routine {
            routine: "gpu",
            reason: "GELU is a tensor operation on GPUs".into(),
        })
    }

    #[cfg(feature = "ops")]
    fn op<E: Element>(&self, on: &crate::op::Place) -> Result<Tensors, Failure> {
        use crate::op::{download, gradient};
        let shape = [self.gate.len()];
        let gate = on.leaf(&self.gate, shape);
        let x = self.x.as_ref().map(|x| on.leaf(x, shape));
        let y = match &x {
            Some(x) => riverrun::ops::geglu(gate.clone(), x.clone())?,
            None => riverrun::ops::gelu(gate.clone())?,
        };
        let gradients = (y.clone() * on.tensor(&self.d_y, shape)).sum().backward();
        let d_x = x.map(|x| gradient(&x, &gradients));
        Ok(self.tensors(download(y), gradient(&gate, &gradients), d_x))
    }
}
