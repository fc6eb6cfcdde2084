//! RMSNorm and LayerNorm, forward and every gradient.
//!
//! A result passes if each element is within one rounding to storage of the reference, plus `slack` roundings of the
//! arithmetic, relative to its terms. `slack` is 32 for the operations on an element, and `D / 32` for sums: no form adds more
//! numbers in a row. With `κ = ρ max |x|` over a row, the sensitivity of the mean and of the root to rounding of `x`, the terms
//! of `y` are as large as `κ |γ|` and `|β|`; those of `d_x`, `ρ max |γ d_y| (1 + κ) (1 + ρ max |c|)`; those of `d_γ`, `Σ |d_y|
//! κ` over the rows.

pub mod oracle;

use riverrun_kernels::norm::{Kind, Spec, cpu};
use riverrun_kernels::{CpuElement, Element, Error};

use crate::{
    Case, Failure, Operation, Part, Random, Report, Storage, Tensors, by_storage, largest,
    roundings, stored, wide,
};

/// The entry in the table.
pub const OPERATION: Operation = Operation {
    name: "norm",
    about: "RMSNorm and LayerNorm",
    storages: &Storage::ALL,
    forms: |_| Kind::ALL.map(Kind::name).to_vec(),
    check: |part, report| by_storage!(part.storage, check(part, report)),
    weight: 1,
    shared: None,
    long: Some("rows of more than 10 007 numbers"),
};

/// A kind of norm, with and without residual and offset.
fn check<E: CpuElement>(part: &Part<'_>, report: &mut dyn Report) -> Result<(), Failure> {
    let mut kinds = Kind::ALL.into_iter();
    let kind = kinds.find(|kind| kind.name() == part.form);
    let kind = kind.expect("one of the forms");
    let shapes = shapes(part.long).iter().enumerate();
    let cases = shapes.flat_map(|(n, &shape)| {
        let random = move |options| Norm::random(kind, shape, Options::nth(options), 17 + n as u64);
        [n, n + 3].map(random)
    });
    part.run_all::<E, _>(kind.name(), cases, report)
}

/// Rows and their numbers.
fn shapes(long: bool) -> &'static [[usize; 2]] {
    const ALL: [[usize; 2]; 17] = [
        [0, 5],
        [1, 1],
        [3, 1],
        [3, 2],
        [5, 31],
        [300, 64],
        [70, 100],
        [33, 255],
        [40, 768],
        [9, 1000],
        [5, 5119],
        [2, 5120],
        [1, 10_007],
        [2000, 512],
        [300, 4096],
        [3, 65_536],
        [4, 50_257],
    ];
    if long { &ALL } else { &ALL[..13] }
}

/// The optional arguments of a case.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// A residual, and a gradient of the sum.
    pub residual: bool,
    /// An offset.
    pub beta: bool,
    /// A mean of the rows of several times their deviation.
    pub far: bool,
}

impl Options {
    /// Combination `number` modulo 8.
    pub fn nth(n: usize) -> Self {
        Self {
            residual: n & 1 != 0,
            beta: n & 2 != 0,
            far: n & 4 != 0,
        }
    }
}

/// A problem and its data, in `f64`.
#[derive(Debug, Clone)]
pub struct Norm {
    /// Which norm.
    pub spec: Spec,
    /// `[rows, D]`.
    pub shape: [usize; 2],
    /// `[rows, D]`.
    pub x: Vec<f64>,
    /// `[rows, D]`, and the gradient of the sum.
    pub residual: Option<(Vec<f64>, Vec<f64>)>,
    /// `[D]`.
    pub gamma: Vec<f64>,
    /// `[D]`.
    pub beta: Option<Vec<f64>>,
    /// `[rows, D]`.
    pub d_y: Vec<f64>,
}

impl Norm {
    /// Random numbers, some of them 0 and some far out.
    pub fn random(kind: Kind, shape: [usize; 2], options: Options, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let [rows, dim] = shape;
        let spike = |i: usize| match i % 37 {
            5 => 0.0,
            11 => 12.0,
            _ => 1.0,
        };
        let mut some = |n: usize, offset: f64| -> Vec<f64> {
            (0..n)
                .map(|i| spike(i) * random.within(3.0) + offset)
                .collect()
        };
        let offset = if options.far { 25.0 } else { 0.0 };
        let all = rows * dim;
        Self {
            spec: Spec {
                kind,
                epsilon: 1e-5,
            },
            shape,
            x: some(all, offset),
            residual: options.residual.then(|| (some(all, 0.0), some(all, 0.0))),
            gamma: some(dim, 0.5),
            beta: options.beta.then(|| some(dim, 0.0)),
            d_y: some(all, 0.0),
        }
    }

    /// The input of the norm: the sum, rounded to storage.
    fn sum<E: Element>(&self) -> Vec<f64> {
        match &self.residual {
            Some((residual, _)) => {
                let add = |(&a, &b): (&f64, &f64)| {
                    let (a, b) = (E::from_f64(a).widen(), E::from_f64(b).widen());
                    E::narrow(a + b).to_f64()
                };
                self.x.iter().zip(residual).map(add).collect()
            }
            None => self.x.clone(),
        }
    }

    /// Every tensor that the options give.
    fn tensors(&self, [y, sum, d_x, d_gamma, d_beta]: [Vec<f64>; 5]) -> Tensors {
        let all = [
            ("y", y),
            ("sum", sum),
            ("d_x", d_x),
            ("d_gamma", d_gamma),
            ("d_beta", d_beta),
        ];
        let has = |name: &str| match name {
            "sum" => self.residual.is_some(),
            "d_beta" => self.beta.is_some(),
            _ => true,
        };
        Tensors::new(all.into_iter().filter(|(name, _)| has(name)))
    }

    /// Runs the GPU kernels with tunings of the forward and the backward pass.
    ///
    /// # Errors
    /// The errors of the kernels.
    #[cfg(feature = "gpu")]
    pub fn tuned(
        &self,
        client: &cubecl::client::Client,
        dtype: riverrun_kernels::gpu::Dtype,
        tunings: [Option<riverrun_kernels::norm::gpu::Tuning>; 2],
    ) -> Result<Tensors, Error> {
        use riverrun_kernels::norm::gpu::{Backward, Forward, backward, forward};

        use crate::transfer;
        let [rows, dim] = self.shape;
        let upload = |data: &[f64]| transfer::upload(client, dtype, data);
        let poison = |elements: usize| transfer::poison(client, dtype, elements);
        let download = |handle, n: usize| transfer::download(client, dtype, handle, n);
        let all = rows * dim;
        let (x, gamma, y) = (upload(&self.x), upload(&self.gamma), poison(all));
        let sum = match self.residual {
            Some(_) => poison(all),
            None => x.clone(),
        };
        let residual = self.residual.as_ref();
        let args = Forward {
            x,
            residual: residual.map(|(r, _)| (upload(r), sum.clone())),
            gamma: gamma.clone(),
            beta: self.beta.as_deref().map(upload),
            y: y.clone(),
        };
        forward(client, &self.spec, dtype, self.shape, &args, tunings[0])?;
        let (d_x, d_gamma, d_beta) = (poison(all), poison(dim), poison(dim));
        let args = Backward {
            x: sum.clone(),
            gamma,
            d_y: upload(&self.d_y),
            d_sum: residual.map(|(_, d)| upload(d)),
            d_x: d_x.clone(),
            d_gamma: d_gamma.clone(),
            d_beta: self.beta.is_some().then(|| d_beta.clone()),
        };
        backward(client, &self.spec, dtype, self.shape, &args, tunings[1])?;
        let wide = [y, sum, d_x].map(|handle| download(handle, all));
        let narrow = [d_gamma, d_beta].map(|handle| download(handle, dim));
        let ([y, sum, d_x], [d_gamma, d_beta]) = (wide, narrow);
        Ok(self.tensors([y, sum, d_x, d_gamma, d_beta]))
    }
}

impl Case for Norm {
    fn numbers(&mut self) -> Vec<&mut Vec<f64>> {
        let mut all = vec![&mut self.x, &mut self.gamma, &mut self.d_y];
        all.extend(self.residual.iter_mut().flat_map(|(x, d)| [x, d]));
        all.extend(&mut self.beta);
        all
    }

    fn oracle<E: Element>(&self) -> Tensors {
        let sum = self.sum::<E>();
        let d_sum = self.residual.as_ref().map(|(_, d)| &d[..]);
        let y = oracle::forward(&self.spec, &sum, &self.gamma, self.beta.as_deref());
        let found = oracle::backward(&self.spec, &sum, &self.gamma, &self.d_y, d_sum);
        self.tensors([y, sum, found.d_x, found.d_gamma, found.d_beta])
    }

    fn allowed<E: Element>(&self, truth: &Tensors) -> Tensors {
        let dim = self.shape[1];
        let (storage, arithmetic) = roundings::<E>();
        let slack = arithmetic * (32.0 + dim as f64 / 32.0);
        let size = |x: &[f64]| largest(x.iter().map(|x| x.abs()));
        let gamma = size(&self.gamma);
        let beta = self.beta.as_deref().map_or(0.0, size);
        // For each row: κ, ρ, ρ max |c|, max |γ d_y|.
        let rows: Vec<[f64; 4]> = self
            .sum::<E>()
            .chunks(dim)
            .zip(self.d_y.chunks(dim))
            .map(|(x, d_y)| {
                let (c, scale) = oracle::normal(&self.spec, x);
                let g = largest(self.gamma.iter().zip(d_y).map(|(g, d)| (g * d).abs()));
                [size(x) * scale, scale, size(&c) * scale, g]
            })
            .collect();
        let over_rows = |i: usize, weight: fn(&[f64; 4]) -> f64| -> f64 {
            let of_row = |(row, d): (&[f64; 4], &[f64])| d[i].abs() * weight(row);
            rows.iter().zip(self.d_y.chunks(dim)).map(of_row).sum()
        };
        let long = slack + arithmetic * self.shape[0] as f64;
        let d_sum = |i: usize| self.residual.as_ref().map_or(0.0, |(_, d)| d[i].abs());
        let rule = |name: &str, i: usize, truth: f64| match name {
            "y" => storage(truth) + slack * (rows[i / dim][0] * gamma + beta),
            "d_x" => {
                let [kappa, scale, c, g] = rows[i / dim];
                storage(truth) + slack * (scale * g * (1.0 + kappa) * (1.0 + c) + d_sum(i))
            }
            "d_gamma" => storage(truth) + long * over_rows(i, |row| row[0] + row[2]),
            "d_beta" => storage(truth) + long * over_rows(i, |_| 1.0),
            // Rounded once, as here.
            _ => 0.0,
        };
        truth.map(rule)
    }

    fn cpu<E: CpuElement>(&self) -> Result<Tensors, Error> {
        let [rows, dim] = self.shape;
        let poison = |n: usize| vec![E::from_f64(f64::NAN); n];
        let (x, gamma) = (stored::<E>(&self.x), stored::<E>(&self.gamma));
        let residual = self.residual.as_ref();
        let residual = residual.map(|(x, d)| (stored::<E>(x), stored::<E>(d)));
        let beta = self.beta.as_deref().map(stored::<E>);
        let (mut y, mut sum) = (poison(rows * dim), poison(rows * dim));
        let args = cpu::Forward {
            x: &x,
            residual: residual.as_ref().map(|(r, _)| (&r[..], &mut sum[..])),
            gamma: &gamma,
            beta: beta.as_deref(),
            y: &mut y,
        };
        cpu::forward(&self.spec, args)?;
        if residual.is_none() {
            sum = x;
        }
        let (mut d_x, mut d_gamma, mut d_beta) = (poison(rows * dim), poison(dim), poison(dim));
        let args = cpu::Backward {
            x: &sum,
            gamma: &gamma,
            d_y: &stored::<E>(&self.d_y),
            d_sum: residual.as_ref().map(|(_, d)| &d[..]),
            d_x: &mut d_x,
            d_gamma: &mut d_gamma,
            d_beta: beta.is_some().then_some(&mut d_beta[..]),
        };
        cpu::backward(&self.spec, args)?;
        Ok(self.tensors([&y, &sum, &d_x, &d_gamma, &d_beta].map(|x| wide(x))))
    }

    #[cfg(feature = "gpu")]
    fn gpu(
        &self,
        client: &cubecl::client::Client,
        dtype: riverrun_kernels::gpu::Dtype,
    ) -> Result<Tensors, Error> {
        self.tuned(client, dtype, [None; 2])
    }
}
