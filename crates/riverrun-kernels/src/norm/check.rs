//! Random problems, the forms run on them, and the rule that accepts a result.
//!
//! A result passes if each element is within one rounding to storage of the reference, plus `slack` roundings of the
//! arithmetic, relative to its terms. `slack` is 32 for the operations on an element, and `D / 32` for sums: no form adds more
//! numbers in a row. With `κ = ρ max |x|` over a row, the sensitivity of the mean and of the root to rounding of `x`, the terms
//! of `y` are as large as `κ |γ|` and `|β|`; those of `d_x`, `ρ max |γ d_y| (1 + κ) (1 + ρ max |c|)`; those of `d_γ`, `Σ |d_y|
//! κ` over the rows.

use super::{Kind, Spec, cpu, oracle};
use crate::Element;
use crate::check::{
    Comparison, Random, largest, rounded, roundings, same_bits, stored, wide, worst,
};

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
pub struct Case {
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

/// The results of forward and backward.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// `[rows, D]`.
    pub y: Vec<f64>,
    /// `[rows, D]`, `x` where there is no residual.
    pub sum: Vec<f64>,
    /// `[rows, D]`.
    pub d_x: Vec<f64>,
    /// `[D]`.
    pub d_gamma: Vec<f64>,
    /// `[D]`, if there is an offset.
    pub d_beta: Vec<f64>,
}

impl Outcome {
    /// Every tensor with its name.
    pub fn tensors(&self) -> [(&'static str, &[f64]); 5] {
        [
            ("y", &self.y),
            ("sum", &self.sum),
            ("d_x", &self.d_x),
            ("d_gamma", &self.d_gamma),
            ("d_beta", &self.d_beta),
        ]
    }

    /// Whether all numbers have the same bits.
    pub fn same_bits(&self, other: &Self) -> bool {
        let (a, b) = (self.tensors(), other.tensors());
        same_bits(a.map(|(_, x)| x), b.map(|(_, x)| x))
    }
}

impl Case {
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

    /// The same with every number rounded to a storage type.
    pub fn rounded<E: Element>(&self) -> Self {
        let round = |x: &Vec<f64>| rounded::<E>(x);
        Self {
            x: round(&self.x),
            residual: self.residual.as_ref().map(|(x, d)| (round(x), round(d))),
            gamma: round(&self.gamma),
            beta: self.beta.as_ref().map(round),
            d_y: round(&self.d_y),
            ..self.clone()
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

    /// Runs the reference, for a case rounded to `E`.
    pub fn oracle<E: Element>(&self) -> Outcome {
        let sum = self.sum::<E>();
        let d_sum = self.residual.as_ref().map(|(_, d)| &d[..]);
        let y = oracle::forward(&self.spec, &sum, &self.gamma, self.beta.as_deref());
        let gradients = oracle::backward(&self.spec, &sum, &self.gamma, &self.d_y, d_sum);
        Outcome {
            y,
            sum,
            d_x: gradients.d_x,
            d_gamma: gradients.d_gamma,
            d_beta: match self.beta {
                Some(_) => gradients.d_beta,
                None => Vec::new(),
            },
        }
    }

    /// Runs the CPU kernels, with every output filled with NaN first.
    ///
    /// # Errors
    /// Those of the kernels.
    pub fn cpu<E: super::cpu::Kernels<E>>(&self) -> Result<Outcome, crate::Error> {
        let [rows, dim] = self.shape;
        let poison = |n: usize| vec![E::from_f64(f64::NAN); n];
        let (x, gamma) = (stored::<E>(&self.x), stored::<E>(&self.gamma));
        let residual = self
            .residual
            .as_ref()
            .map(|(x, d)| (stored::<E>(x), stored::<E>(d)));
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
        Ok(Outcome {
            y: wide(&y),
            sum: wide(&sum),
            d_x: wide(&d_x),
            d_gamma: wide(&d_gamma),
            d_beta: if beta.is_some() {
                wide(&d_beta)
            } else {
                Vec::new()
            },
        })
    }

    /// Runs the GPU kernels, with every output filled with NaN first.
    ///
    /// # Errors
    /// Those of the kernels.
    #[cfg(feature = "gpu")]
    pub fn gpu(
        &self,
        client: &cubecl::client::Client,
        dtype: crate::gpu::Dtype,
        tunings: [Option<super::gpu::Tuning>; 2],
    ) -> Result<Outcome, crate::Error> {
        use super::gpu::{Backward, Forward, backward, forward};
        use crate::check::transfer;
        let [rows, dim] = self.shape;
        let upload = |data: &[f64]| transfer::upload(client, dtype, data);
        let poison = |elements: usize| transfer::poison(client, dtype, elements);
        let download = |handle, n: usize| transfer::download(client, dtype, handle, n);
        let (all, beta) = (rows * dim, self.beta.is_some());
        let (x, gamma, y) = (upload(&self.x), upload(&self.gamma), poison(all));
        let sum = match self.residual {
            Some(_) => poison(all),
            None => x.clone(),
        };
        let args = Forward {
            x,
            residual: self
                .residual
                .as_ref()
                .map(|(r, _)| (upload(r), sum.clone())),
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
            d_sum: self.residual.as_ref().map(|(_, d)| upload(d)),
            d_x: d_x.clone(),
            d_gamma: d_gamma.clone(),
            d_beta: beta.then(|| d_beta.clone()),
        };
        backward(client, &self.spec, dtype, self.shape, &args, tunings[1])?;
        Ok(Outcome {
            y: download(y, all),
            sum: download(sum, all),
            d_x: download(d_x, all),
            d_gamma: download(d_gamma, dim),
            d_beta: if beta {
                download(d_beta, dim)
            } else {
                Vec::new()
            },
        })
    }

    /// Compares every tensor of `found`.
    pub fn compare<E: Element>(&self, found: &Outcome, reference: &Outcome) -> Vec<Comparison> {
        let dim = self.shape[1];
        let (storage, arithmetic) = roundings::<E>();
        let slack = arithmetic * (32.0 + dim as f64 / 32.0);
        let size = |x: &[f64]| largest(x.iter().map(|x| x.abs()));
        let gamma = size(&self.gamma);
        let beta = self.beta.as_deref().map_or(0.0, size);
        // For each row: κ, ρ, ρ max |c|, max |γ d_y|.
        let rows: Vec<[f64; 4]> = reference
            .sum
            .chunks(dim)
            .zip(self.d_y.chunks(dim))
            .map(|(x, d_y)| {
                let (c, scale) = oracle::normal(&self.spec, x);
                let g = largest(self.gamma.iter().zip(d_y).map(|(g, d)| (g * d).abs()));
                [size(x) * scale, scale, size(&c) * scale, g]
            })
            .collect();
        let column = |i: usize| -> f64 {
            let of_row = |(row, d): (&[f64; 4], &[f64])| d[i].abs() * (row[0] + row[2]);
            rows.iter().zip(self.d_y.chunks(dim)).map(of_row).sum()
        };
        let columns: Vec<f64> = (0..dim).map(column).collect();
        let offsets: Vec<f64> = (0..dim)
            .map(|i| self.d_y.chunks(dim).map(|d| d[i].abs()).sum())
            .collect();
        let long = slack + arithmetic * self.shape[0] as f64;
        let d_sum = |i: usize| self.residual.as_ref().map_or(0.0, |(_, d)| d[i].abs());
        vec![
            worst("y", &found.y, &reference.y, |i| {
                let [kappa, ..] = rows[i / dim];
                storage(reference.y[i]) + slack * (kappa * gamma + beta)
            }),
            worst("sum", &found.sum, &reference.sum, |_| 0.0),
            worst("d_x", &found.d_x, &reference.d_x, |i| {
                let [kappa, scale, c, g] = rows[i / dim];
                let terms = scale * g * (1.0 + kappa) * (1.0 + c) + d_sum(i);
                storage(reference.d_x[i]) + slack * terms
            }),
            worst("d_gamma", &found.d_gamma, &reference.d_gamma, |i| {
                storage(reference.d_gamma[i]) + long * columns[i]
            }),
            worst("d_beta", &found.d_beta, &reference.d_beta, |i| {
                storage(reference.d_beta[i]) + long * offsets[i]
            }),
        ]
    }
}
