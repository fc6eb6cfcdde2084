//! GELU, SiLU and the sigmoid, alone and as gates, forward and backward.
//!
//! One rounding to storage and 16 roundings of the arithmetic: σ is right to 4 ulp, and the slope is a difference near its zero.

pub mod check;
pub mod oracle;

pub use riverrun_kernels::activation::*;

use crate::{
    Case, CpuElement, Element, Error, Failure, Operation, Part, Random, Report, Storage, Tensors,
    by_storage, roundings, stored, wide,
};

/// The entry in the table.
pub const OPERATION: Operation = Operation {
    name: "activation",
    about: "GELU, SiLU and the sigmoid, alone and as gates",
    storages: &Storage::ALL,
    forms: |_| FORMS.iter().map(|(name, ..)| *name).collect(),
    check: |part, report| by_storage!(part.storage, check(part, report)),
    weight: 0,
    shared: None,
    long: None,
};

/// The functions, and whether they are gates.
const FORMS: [(&str, Nonlinearity, bool); 6] = [
    ("gelu", Nonlinearity::Gelu, false),
    ("geglu", Nonlinearity::Gelu, true),
    ("silu", Nonlinearity::Silu, false),
    ("swiglu", Nonlinearity::Silu, true),
    ("sigmoid", Nonlinearity::Sigmoid, false),
    ("glu", Nonlinearity::Sigmoid, true),
];

fn check<E: CpuElement>(part: &Part<'_>, report: &mut dyn Report) -> Result<(), Failure> {
    let form = FORMS.into_iter().find(|(name, ..)| *name == part.form);
    let (_, f, gate) = form.expect("a form of this operation");
    let counts = [0, 1, 31, 33, 1000, 40_000].into_iter().enumerate();
    let cases = counts.map(|(seed, count)| Gated::random(f, gate, count, seed as u64));
    #[cfg(feature = "ops")]
    part.run_ops::<E, _>(part.form, cases.clone().skip(1), report)?;
    part.run_all::<E, _>(part.form, cases, report)
}

/// A problem and its data, in `f64`.
#[derive(Debug, Clone)]
pub struct Gated {
    /// The function.
    pub f: Nonlinearity,
    /// The argument of the function.
    pub gate: Vec<f64>,
    /// What the function is a factor of, if it is a gate.
    pub x: Option<Vec<f64>>,
    /// `∂L/∂y`.
    pub d_y: Vec<f64>,
}

impl Gated {
    /// Mostly near 0, where the function is curved, some at 0 and some far out.
    pub fn random(f: Nonlinearity, gate: bool, count: usize, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let scale = |i: usize| match i % 37 {
            5 => 0.0,
            11 => 20.0,
            _ if i.is_multiple_of(11) => 18.0,
            _ => 3.0,
        };
        let numbers = (0..count).map(|i| scale(i) * random.within(1.0)).collect();
        Self {
            f,
            gate: numbers,
            x: gate.then(|| Random::new(count as u64).vec(count, 1.0)),
            d_y: (0..count).map(|i| scale(i) * random.within(1.0)).collect(),
        }
    }

    /// The result and the gradients of the inputs.
    fn tensors(&self, y: Vec<f64>, d_gate: Vec<f64>, d_x: Option<Vec<f64>>) -> Tensors {
        let gate = if d_x.is_some() { "d_gate" } else { "d_x" };
        let all = [("y", y), (gate, d_gate)];
        Tensors::new(all.into_iter().chain(d_x.map(|d_x| ("d_x", d_x))))
    }

    /// What the function is multiplied by, and its gradient by.
    fn factor(&self, i: usize) -> f64 {
        self.x.as_ref().map_or(1.0, |x| x[i])
    }
}

impl Case for Gated {
    fn numbers(&mut self) -> Vec<&mut Vec<f64>> {
        let mut all = vec![&mut self.gate, &mut self.d_y];
        all.extend(&mut self.x);
        all
    }

    fn oracle<E: Element>(&self) -> Tensors {
        let active = oracle::forward(self.f, &self.gate);
        let by = |numbers: &[f64], f: &dyn Fn(usize) -> f64| -> Vec<f64> {
            numbers.iter().enumerate().map(|(i, x)| x * f(i)).collect()
        };
        let products = by(&self.d_y, &|i| self.factor(i));
        let d_x = self.x.as_ref().map(|_| by(&active, &|i| self.d_y[i]));
        let y = by(&active, &|i| self.factor(i));
        self.tensors(y, oracle::backward(self.f, &self.gate, &products), d_x)
    }

    fn allowed<E: Element>(&self, truth: &Tensors) -> Tensors {
        let (storage, arithmetic) = roundings::<E>();
        let terms = 16.0 * arithmetic;
        truth.map(|name, i, truth| {
            let factor = match (name, &self.x) {
                (_, None) => 1.0,
                ("d_x", _) => self.d_y[i].abs(),
                (_, Some(other)) => other[i].abs(),
            };
            // The gradient of the function's argument; else the function itself.
            let slope = name == "d_gate" || name == "d_x" && self.x.is_none();
            let own = match slope {
                true => self.d_y[i].abs() * factor,
                false => 0.1 * factor,
            };
            storage(truth) + terms * (own + truth.abs())
        })
    }

    fn cpu<E: CpuElement>(&self) -> Result<Tensors, Error> {
        let [gate, d_y] = [&self.gate, &self.d_y].map(|x| stored::<E>(x));
        let x = self.x.as_ref().map(|x| stored::<E>(x));
        let [mut y, mut d_gate, mut d_x] =
            [(); 3].map(|()| vec![E::from_f64(f64::NAN); gate.len()]);
        cpu::forward(self.f, &gate, x.as_deref(), &mut y)?;
        let factor = x.as_deref().map(|x| (x, &mut d_x[..]));
        cpu::backward(self.f, &gate, factor, &d_y, &mut d_gate)?;
        let d_x = self.x.as_ref().map(|_| wide(&d_x));
        Ok(self.tensors(wide(&y), wide(&d_gate), d_x))
    }

    #[cfg(feature = "gpu")]
    fn gpu(
        &self,
        client: &cubecl::client::Client,
        dtype: riverrun_kernels::gpu::Dtype,
    ) -> Result<Tensors, Error> {
        use crate::transfer;
        let count = self.gate.len();
        let upload = |data: &[f64]| transfer::upload(client, dtype, data);
        let poison = || transfer::poison(client, dtype, count);
        let (gate, x) = (upload(&self.gate), self.x.as_ref().map(|x| upload(x)));
        let (y, d_gate, d_x) = (poison(), poison(), x.as_ref().map(|_| poison()));
        let args = gpu::Forward {
            count,
            gate: gate.clone(),
            x: x.clone(),
            y: y.clone(),
        };
        gpu::forward(client, self.f, dtype, &args)?;
        let args = gpu::Backward {
            count,
            gate,
            x: x.zip(d_x.clone()).map(|(x, d_x)| [x, d_x]),
            d_y: upload(&self.d_y),
            d_gate: d_gate.clone(),
        };
        gpu::backward(client, self.f, dtype, &args)?;
        let download = |handle| transfer::download(client, dtype, handle, count);
        Ok(self.tensors(download(y), download(d_gate), d_x.map(download)))
    }

    #[cfg(feature = "ops")]
    fn op<E: Element>(&self, on: &crate::op::Place) -> Result<Tensors, Failure> {
        use crate::op::{download, gradient};
        use riverrun::ops;
        let shape = [self.gate.len()];
        let gate = on.leaf(&self.gate, shape);
        let x = self.x.as_ref().map(|x| on.leaf(x, shape));
        let y = match (self.f, &x) {
            (Nonlinearity::Gelu, Some(x)) => ops::geglu(gate.clone(), x.clone())?,
            (Nonlinearity::Gelu, None) => ops::gelu(gate.clone())?,
            (Nonlinearity::Silu, Some(x)) => ops::swiglu(gate.clone(), x.clone())?,
            (Nonlinearity::Silu, None) => ops::silu(gate.clone())?,
            (Nonlinearity::Sigmoid, Some(x)) => ops::glu(gate.clone(), x.clone())?,
            (Nonlinearity::Sigmoid, None) => ops::sigmoid(gate.clone())?,
        };
        let gradients = (y.clone() * on.tensor(&self.d_y, shape)).sum().backward();
        let d_x = x.map(|x| gradient(&x, &gradients));
        Ok(self.tensors(download(y), gradient(&gate, &gradients), d_x))
    }
}
