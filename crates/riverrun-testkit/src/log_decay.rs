//! Step sizes and the logarithms of decays. Functions are right to a few units in the last place; every number of a sum is as large as
//! the sum of the terms' sizes at most.

pub use riverrun_kernels::log_decay::*;

use crate::{
    Case, CpuElement, Element, Error, Failure, Operation, Part, Random, Report, Storage, Tensors,
    by_storage, roundings, stored, wide,
};
use riverrun_kernels::Real;

/// The entry in the table.
pub const OPERATION: Operation = Operation {
    name: "log-decay",
    about: "Step sizes of channels and the logarithms of their decays",
    storages: &Storage::ALL,
    forms: |_| FORMS.iter().map(|(name, _)| *name).collect(),
    check: |part, report| by_storage!(part.storage, check(part, report)),
    weight: 0,
    shared: None,
    long: None,
};

/// What is wanted of the step sizes and the decays.
const FORMS: [(&str, [bool; 2]); 3] = [
    ("decays", [false, true]),
    ("steps and decays", [true, true]),
    ("steps", [true, false]),
];

/// Rows, heads and channels of each.
const SHAPES: [[usize; 3]; 6] = [
    [0, 2, 3],
    [1, 1, 1],
    [7, 6, 1],
    [65, 3, 8],
    [300, 5, 7],
    [40, 4, 130],
];

const NAMES: [&str; 5] = ["step", "g", "d_a", "d_a_log", "d_dt_bias"];

fn check<E: CpuElement>(part: &Part<'_>, report: &mut dyn Report) -> Result<(), Failure> {
    let form = FORMS.into_iter().find(|(name, _)| *name == part.form);
    let (_, read) = form.expect("a form of this operation");
    let shapes = SHAPES.into_iter().enumerate();
    let cases = shapes.map(|(n, shape)| Decays::random(shape, read, n as u64));
    part.run_all::<E, _>(part.form, cases, report)
}

/// A problem and its data, in `f64`.
#[derive(Debug, Clone)]
pub struct Decays {
    /// The sizes.
    pub shape: Shape,
    /// Whether a loss reads the step sizes, and the decays.
    pub read: [bool; 2],
    /// `[R, H E]`.
    pub a: Vec<f64>,
    /// `[H]`.
    pub a_log: Vec<f64>,
    /// `[H E]`.
    pub dt_bias: Vec<f64>,
    /// `[R, H E]`.
    pub d_step: Vec<f64>,
    /// `[R, H E]`.
    pub d_g: Vec<f64>,
}

impl Decays {
    /// Step sizes from far below 1 to far above; numbers that `f32` holds.
    pub fn random([rows, heads, each]: [usize; 3], read: [bool; 2], seed: u64) -> Self {
        let shape = Shape { rows, heads, each };
        let mut random = Random::new(seed);
        let mut numbers = |count, scale| -> Vec<f64> {
            let numbers: Vec<f64> = random.vec(count, scale);
            numbers.into_iter().map(|x| f64::from(x as f32)).collect()
        };
        let all = shape.elements();
        let mut a = numbers(all, 4.0);
        for (i, a) in a.iter_mut().enumerate() {
            *a *= match i % 11 {
                4 => 20.0,
                7 => 0.01,
                _ => 1.0,
            };
        }
        Self {
            shape,
            read,
            a,
            a_log: numbers(heads, 2.0),
            dt_bias: numbers(shape.dim(), 3.0),
            d_step: numbers(all, 1.0),
            d_g: numbers(all, 1.0),
        }
    }

    /// The results and gradients, each with the sum of its terms' sizes.
    fn sums(&self) -> [[Vec<f64>; 2]; NAMES.len()] {
        let (dim, each) = (self.shape.dim(), self.shape.each);
        let lengths = [self.a.len(), self.a.len(), self.a.len(), dim, dim];
        let mut sums = lengths.map(|n| [vec![0.0; n], vec![0.0; n]]);
        let mut add = |tensor: usize, at: usize, terms: [f64; 2]| {
            sums[tensor][0][at] += terms[0] + terms[1];
            sums[tensor][1][at] += terms[0].abs() + terms[1].abs();
        };
        for (i, &a) in self.a.iter().enumerate() {
            let channel = i % dim;
            let z = a + self.dt_bias[channel];
            let size = z.max(0.0) + (-z.abs()).exp().ln_1p();
            let slope = 1.0 / (1.0 + (-z).exp());
            let rate = -self.a_log[channel / each].exp();
            let read = |k: usize, d: f64| if self.read[k] { d } else { 0.0 };
            let (d_step, d_g) = (read(0, self.d_step[i]), read(1, self.d_g[i]));
            if self.read[0] {
                add(0, i, [size, 0.0]);
            }
            add(1, i, [rate * size, 0.0]);
            let terms = [d_step * slope, d_g * rate * slope];
            add(2, i, terms);
            add(3, channel, [d_g * rate * size, 0.0]);
            add(4, channel, terms);
        }
        sums
    }

    fn named(&self, all: [Vec<f64>; NAMES.len()]) -> Tensors {
        let all = NAMES.into_iter().zip(all);
        Tensors::new(all.filter(|(name, _)| self.read[0] || *name != "step"))
    }
}

impl Case for Decays {
    fn numbers(&mut self) -> Vec<&mut Vec<f64>> {
        vec![&mut self.a, &mut self.d_g]
    }

    fn oracle<E: Element>(&self) -> Tensors {
        self.named(self.sums().map(|[numbers, _]| numbers))
    }

    fn allowed<E: Element>(&self, truth: &Tensors) -> Tensors {
        let (storage, arithmetic) = roundings::<E>();
        let sizes = self.named(self.sums().map(|[_, sizes]| sizes));
        let dim = self.shape.dim();
        truth.map(|name, i, truth| {
            let size = sizes.get(name)[i];
            // An error of the argument is one of the exponential, as large as the argument.
            let far = |i: usize| 1.0 + self.a[i].abs() + self.dt_bias[i % dim].abs();
            let (rounded, terms) = match name {
                "step" => (0.0, 16.0 + far(i)),
                "g" | "d_a" => (storage(truth), 16.0 + far(i)),
                _ => (0.0, 116.0 + self.shape.rows as f64),
            };
            // Far below 0, the step size of f32 is 0 in effect.
            rounded + arithmetic * (terms * size + 1e-6)
        })
    }

    fn cpu<E: CpuElement>(&self) -> Result<Tensors, Error> {
        let (a, d_g) = (stored::<E>(&self.a), stored::<E>(&self.d_g));
        let acc = |numbers: &[f64]| -> Vec<E::Acc> {
            numbers.iter().map(|&x| E::Acc::from_f64(x)).collect()
        };
        let back =
            |numbers: &[E::Acc]| -> Vec<f64> { numbers.iter().map(|x| x.to_f64()).collect() };
        let [a_log, dt_bias, d_step] = [&self.a_log, &self.dt_bias, &self.d_step].map(|x| acc(x));
        let (all, dim) = (self.shape.elements(), self.shape.dim());
        let nan = |n: usize| vec![E::from_f64(f64::NAN); n];
        let (mut g, mut d_a) = (nan(all), nan(all));
        let [mut step, mut d_a_log, mut d_dt_bias] =
            [all, dim, dim].map(|n| acc(&vec![f64::NAN; n]));
        let inputs = cpu::Inputs::<E> {
            a: &a,
            a_log: &a_log,
            dt_bias: &dt_bias,
        };
        let to = self.read[0].then_some(&mut step[..]);
        cpu::forward(self.shape, inputs, to, &mut g)?;
        let d = cpu::Gradients::<E> {
            a: &mut d_a,
            a_log: &mut d_a_log,
            dt_bias: &mut d_dt_bias,
        };
        let (d_step, d_g) = (
            self.read[0].then_some(&d_step[..]),
            self.read[1].then_some(&d_g[..]),
        );
        cpu::backward(self.shape, inputs, d_step, d_g, d)?;
        Ok(self.named([
            back(&step),
            wide(&g),
            wide(&d_a),
            back(&d_a_log),
            back(&d_dt_bias),
        ]))
    }

    #[cfg(feature = "gpu")]
    fn gpu(
        &self,
        client: &cubecl::client::Client,
        dtype: riverrun_kernels::gpu::Dtype,
    ) -> Result<Tensors, Error> {
        use riverrun_kernels::gpu::Dtype::F32;

        use crate::transfer;
        let (all, dim) = (self.shape.elements(), self.shape.dim());
        let upload = |dtype, data: &[f64]| transfer::upload(client, dtype, data);
        let poison = |dtype, n: usize| transfer::poison(client, dtype, n);
        let inputs = gpu::Inputs {
            a: upload(dtype, &self.a),
            a_log: upload(F32, &self.a_log),
            dt_bias: upload(F32, &self.dt_bias),
        };
        let (step, g) = (poison(F32, all), poison(dtype, all));
        let d = gpu::Gradients {
            a: poison(dtype, all),
            a_log: poison(F32, dim),
            dt_bias: poison(F32, dim),
        };
        let to = self.read[0].then_some(&step);
        gpu::forward(client, self.shape, dtype, &inputs, to, &g)?;
        let d_step = self.read[0].then(|| upload(F32, &self.d_step));
        let d_g = self.read[1].then(|| upload(dtype, &self.d_g));
        let (d_step, d_g) = (d_step.as_ref(), d_g.as_ref());
        gpu::backward(client, self.shape, dtype, &inputs, d_step, d_g, &d)?;
        let download = |dtype, handle, n| transfer::download(client, dtype, handle, n);
        Ok(self.named([
            download(F32, step, all),
            download(dtype, g, all),
            download(dtype, d.a, all),
            download(F32, d.a_log, dim),
            download(F32, d.dt_bias, dim),
        ]))
    }
}
