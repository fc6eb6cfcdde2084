//! The short causal convolution with its state, forward and every gradient.
//!
//! Each product and each partial sum is rounded once in the arithmetic, no partial sum is larger than the sum of the terms'
//! sizes, and the result is rounded to the storage type once. Before SiLU, gradients are rounded to it once as well.

pub mod oracle;

pub use riverrun_kernels::short_convolution::*;

use crate::{
    Case, CpuElement, Element, Error, Failure, Operation, Part, Random, Report, Storage, Tensors,
    by_storage, roundings, stored, wide,
};

/// The entry in the table.
pub const OPERATION: Operation = Operation {
    name: "conv",
    about: "The short causal convolution with its state",
    storages: &Storage::ALL,
    forms: |_| vec!["convolution", "silu"],
    check: |part, report| by_storage!(part.storage, check(part, report)),
    weight: 1,
    shared: None,
    long: None,
};

/// `[B, T, D]` and the weights of a channel: one to five of them, sequences shorter and longer than they reach; the last two
/// have several runs of steps, and several of columns.
const SHAPES: [[usize; 4]; 8] = [
    [2, 1, 3, 4],
    [2, 2, 3, 1],
    [2, 3, 8, 2],
    [2, 9, 3, 5],
    [2, 40, 3, 3],
    [2, 1, 3, 4],
    [2, 150, 24, 4],
    [2, 70, 520, 3],
];

fn check<E: CpuElement>(part: &Part<'_>, report: &mut dyn Report) -> Result<(), Failure> {
    let shapes = SHAPES.into_iter().enumerate();
    let silu = part.form == "silu";
    let cases = shapes.map(|(n, shape)| Convolution {
        silu,
        ..Convolution::random(shape, n)
    });
    #[cfg(feature = "ops")]
    part.run_ops::<E, _>(part.form, cases.clone(), report)?;
    part.run_all::<E, _>(part.form, cases, report)
}

const NAMES: [&str; 6] = ["y", "state", "d_x", "d_weight", "d_bias", "d_state"];

/// A problem and its data, in `f64`.
#[derive(Debug, Clone)]
pub struct Convolution {
    /// The sizes.
    pub shape: Shape,
    /// `[B, T, D]`.
    pub x: Vec<f64>,
    /// `[taps, D]`.
    pub weight: Vec<f64>,
    /// `[D]`.
    pub bias: Vec<f64>,
    /// `[B, taps - 1, D]`.
    pub state: Vec<f64>,
    /// `[B, T]`.
    pub reset: Vec<bool>,
    /// `[B, T, D]`.
    pub d_y: Vec<f64>,
    /// `[B, taps - 1, D]`.
    pub d_last: Vec<f64>,
    /// Whether `y` is the SiLU of the convolution, in three parts.
    pub silu: bool,
}

impl Convolution {
    /// Random data, with restarts at places of `n`.
    pub fn random([batch, steps, dim, taps]: [usize; 4], n: usize) -> Self {
        let shape = Shape {
            batch,
            steps,
            dim,
            taps,
        };
        let mut random = Random::new(n as u64);
        let mut numbers = |count: usize| random.vec(count, 1.0);
        let restart = |i: usize| i % 7 == n % 7 && i % 3 == n % 3;
        Self {
            shape,
            x: numbers(shape.elements()),
            weight: numbers(shape.weights()),
            bias: numbers(dim),
            state: numbers(shape.state()),
            reset: (0..shape.rows()).map(restart).collect(),
            d_y: numbers(shape.elements()),
            d_last: numbers(shape.state()),
            silu: false,
        }
    }

    /// Channels of the parts of `y`.
    fn widths(&self) -> Vec<usize> {
        let dim = self.shape.dim;
        match self.silu {
            false => vec![dim],
            // Of 8, 24 and 520 channels whole vectors; of 3 a part without channels.
            true => vec![dim / 4, dim / 4, dim - dim / 4 * 2],
        }
    }

    /// The parts of rows of `D` channels.
    fn parts<T: Copy>(&self, rows: &[T]) -> Vec<(usize, Vec<T>)> {
        let mut first = 0;
        let mut part = |width: usize| {
            let own = first..first + width;
            first = own.end;
            let rows = rows.chunks(self.shape.dim);
            (
                width,
                rows.flat_map(|row| row[own.clone()].to_vec()).collect(),
            )
        };
        self.widths().into_iter().map(&mut part).collect()
    }

    /// The rows of parts.
    fn joined(&self, parts: &[Vec<f64>]) -> Vec<f64> {
        let widths = self.widths();
        let row = |i: usize| {
            let parts = parts.iter().zip(&widths);
            parts.flat_map(move |(part, width)| part[i * width..(i + 1) * width].to_vec())
        };
        (0..self.shape.rows()).flat_map(row).collect()
    }

    /// The lengths of the results and of the gradients.
    fn lengths(&self) -> [usize; NAMES.len()] {
        let Shape { dim, .. } = self.shape;
        let (all, state) = (self.shape.elements(), self.shape.state());
        [all, state, all, self.shape.weights(), dim, state]
    }
}

fn named(all: [Vec<f64>; NAMES.len()]) -> Tensors {
    Tensors::new(NAMES.into_iter().zip(all))
}

impl Case for Convolution {
    fn numbers(&mut self) -> Vec<&mut Vec<f64>> {
        vec![
            &mut self.x,
            &mut self.weight,
            &mut self.bias,
            &mut self.state,
            &mut self.d_y,
            &mut self.d_last,
        ]
    }

    fn oracle<E: Element>(&self) -> Tensors {
        named(self.sums(|_| 0.0).map(|[numbers, ..]| numbers))
    }

    fn allowed<E: Element>(&self, truth: &Tensors) -> Tensors {
        let (storage, arithmetic) = roundings::<E>();
        let value = (self.shape.taps + 2) as f64 * arithmetic;
        // The slope of SiLU is at most 1.1, and bends by at most 1/2; see `activation` for its own error.
        let error = |[d, d_y, size]: [f64; 3]| {
            storage(d) + d_y.abs() * (0.5 * value * size + 16.0 * arithmetic)
        };
        let sums = self.sums(error);
        let [sizes, errors] = [1, 2].map(|k| named(sums.clone().map(|sum| sum[k].clone())));
        truth.map(|name, i, truth| {
            let (size, error) = (sizes.get(name)[i], errors.get(name)[i]);
            let terms = match name {
                "d_weight" | "d_bias" => self.shape.rows(),
                "y" if self.silu => {
                    let own = 16.0 * arithmetic * (0.1 + truth.abs());
                    return storage(truth) + 1.1 * value * size + own;
                }
                _ => self.shape.taps + 1,
            };
            storage(truth) + (terms + 1) as f64 * arithmetic * size + error
        })
    }

    fn cpu<E: CpuElement>(&self) -> Result<Tensors, Error> {
        let [x, weight, bias, state] =
            [&self.x, &self.weight, &self.bias, &self.state].map(|x| stored::<E>(x));
        let mut found = self.lengths().map(|n| vec![E::from_f64(f64::NAN); n]);
        let [y, last, d_x, d_weight, d_bias, d_state] = &mut found;
        let mut parts = self.parts(y);
        let args = cpu::Forward {
            x: &x,
            weight: &weight,
            bias: Some(&bias),
            state: Some(&state),
            reset: Some(&self.reset),
            silu: self.silu,
            y: parts
                .iter_mut()
                .map(|(width, y)| (*width, &mut y[..]))
                .collect(),
            last,
        };
        cpu::forward(self.shape, args)?;
        let parts: Vec<_> = parts.iter().map(|(_, y)| wide(y)).collect();
        *y = stored::<E>(&self.joined(&parts));
        let d_y = self.parts(&stored::<E>(&self.d_y));
        let args = cpu::Backward {
            x: &x,
            weight: &weight,
            bias: Some(&bias),
            state: Some(&state),
            reset: Some(&self.reset),
            silu: self.silu,
            d_y: d_y.iter().map(|(width, d)| (*width, &d[..])).collect(),
            d_last: Some(&stored::<E>(&self.d_last)),
            d_x,
            d_weight,
            d_bias,
            d_state,
        };
        cpu::backward(self.shape, args)?;
        Ok(named(found.map(|x| wide(&x))))
    }

    #[cfg(feature = "gpu")]
    fn gpu(
        &self,
        client: &cubecl::client::Client,
        dtype: riverrun_kernels::gpu::Dtype,
    ) -> Result<Tensors, Error> {
        use crate::transfer;
        let upload = |data: &[f64]| transfer::upload(client, dtype, data);
        let [x, weight, state] = [&self.x, &self.weight, &self.state].map(|x| upload(x));
        let reset = upload(&crate::marks(&self.reset));
        let found = self
            .lengths()
            .map(|n| (transfer::poison(client, dtype, n), n));
        let [_, last, d_x, d_weight, d_bias, d_state] = found.clone().map(|(handle, _)| handle);
        let bias = upload(&self.bias);
        let rows = self.shape.rows();
        let y = self.widths().into_iter();
        let y: Vec<_> = y
            .map(|width| (width, transfer::poison(client, dtype, rows * width)))
            .collect();
        let args = gpu::Forward {
            x: x.clone(),
            weight: weight.clone(),
            bias: Some(bias.clone()),
            state: Some(state.clone()),
            reset: Some(reset.clone()),
            silu: self.silu,
            y: y.clone(),
            last,
        };
        gpu::forward(client, self.shape, dtype, &args)?;
        let args = gpu::Backward {
            x,
            weight,
            bias: Some(bias),
            state: Some(state),
            reset: Some(reset),
            silu: self.silu,
            d_y: self
                .parts(&self.d_y)
                .iter()
                .map(|(width, d)| (*width, upload(d)))
                .collect(),
            d_last: Some(upload(&self.d_last)),
            d_x,
            d_weight,
            d_bias,
            d_state,
        };
        gpu::backward(client, self.shape, dtype, &args)?;
        let download = |(handle, n)| transfer::download(client, dtype, handle, n);
        let parts: Vec<_> = y
            .into_iter()
            .map(|(width, y)| download((y, rows * width)))
            .collect();
        let [_, others @ ..] = found;
        let [last, d_x, d_weight, d_bias, d_state] = others.map(download);
        Ok(named([
            self.joined(&parts),
            last,
            d_x,
            d_weight,
            d_bias,
            d_state,
        ]))
    }

    #[cfg(feature = "ops")]
    fn op<E: Element>(&self, on: &crate::op::Place) -> Result<Tensors, Failure> {
        use burn::tensor::Tensor;
        use riverrun::{Sequence, ops};

        use crate::op::{download, gradient};
        let Shape {
            batch,
            steps,
            dim,
            taps,
        } = self.shape;
        let x = on.leaf(&self.x, [batch, steps, dim]);
        let state = on.leaf(&self.state, [batch, taps - 1, dim]);
        let weight = on.leaf(&self.weight, [taps, dim]);
        let bias = on.leaf(&self.bias, [dim]);
        let reset = on.mask(&self.reset, [batch, steps]);
        let sequence = Sequence::new().with_state(state.clone()).with_reset(reset);
        let (input, weights, offset) = (x.clone(), weight.clone(), Some(bias.clone()));
        let (y, last) = match self.widths()[..] {
            [first, second, third] => {
                let widths = [first, second, third];
                let (y, last) =
                    ops::short_convolution_silu(input, weights, offset, sequence, widths)?;
                let there = y.into_iter().filter(|y| y.dims()[2] > 0);
                (Tensor::cat(there.collect(), 2), last)
            }
            _ => ops::short_convolution(input, weights, offset, sequence)?,
        };
        let mut loss = (y.clone() * on.tensor(&self.d_y, [batch, steps, dim])).sum();
        if taps > 1 {
            let d_last = on.tensor(&self.d_last, [batch, taps - 1, dim]);
            loss = loss + (last.clone() * d_last).sum();
        }
        let gradients = loss.backward();
        let d_state = match taps {
            1 => Vec::new(),
            _ => gradient(&state, &gradients),
        };
        Ok(named([
            download(y),
            download(last),
            gradient(&x, &gradients),
            gradient(&weight, &gradients),
            gradient(&bias, &gradients),
            d_state,
        ]))
    }
}
