//! A single step on a GPU: random problems, and the rule by which a result is accepted.
//!
//! The new states are accepted within `4 ε √n` of the scale, or of 1 or the largest input if that is more, for sums of `n`
//! terms in `f32`, which are as large as the inputs; what is stored in 16 bits may be off by two of its own roundings more.

use cubecl::client::Client;
use cubecl::server::Handle;

use super::{Case, Options, Random};
use crate::cell::gpu::{Step, step};
use crate::cell::{Cell, Problem, oracle};
use crate::check::{Comparison, distance, largest};
use crate::gpu::Dtype;
use crate::{Element, Error};

/// A step with its inputs, and an input bias.
#[derive(Debug, Clone)]
pub struct StepCase<E> {
    case: Case<E>,
    width: usize,
    x: Vec<E>,
    w: Vec<E>,
    bias_ih: Vec<E>,
}

impl<E: Element + bytemuck::Pod> StepCase<E> {
    /// Random numbers for a problem of one step and inputs of `width`; of the options, the recurrent bias and the states
    /// before count.
    pub fn random(problem: Problem, width: usize, options: Options, seed: u64) -> Self {
        let rows = problem.gate_width();
        let mut random = Random::new(seed + 1);
        let mut some = |len: usize, scale: f64| -> Vec<E> {
            let values = random.vec(len, scale).into_iter();
            values.map(E::from_f64).collect()
        };
        Self {
            case: Case::random(problem, options, seed),
            width,
            x: some(problem.batch * width, 1.0),
            w: some(rows * width, 1.0 / (width.max(1) as f64).sqrt()),
            bias_ih: some(rows, 1.0),
        }
    }

    /// The problem.
    pub fn problem(&self) -> Problem {
        self.case.problem
    }

    /// Numbers of an input.
    pub fn width(&self) -> usize {
        self.width
    }

    /// With the same inputs in turn, as often as it takes.
    #[must_use]
    pub fn with_inputs(mut self, inputs: &[f64]) -> Self {
        for (x, value) in self.x.iter_mut().zip(inputs.iter().cycle()) {
            *x = E::from_f64(*value);
        }
        self
    }

    /// The new states in `f64`, and the new cell states of an LSTM.
    ///
    /// # Errors
    /// Problems that the oracle refuses.
    pub fn oracle(&self) -> Result<[Vec<f64>; 2], Error> {
        let mut exact = self.case.to::<f64>();
        let rows = self.case.problem.gate_width();
        for (n, sum) in exact.xg.iter_mut().enumerate() {
            let (b, row) = (n / rows, n % rows);
            let x = &self.x[b * self.width..][..self.width];
            let w = &self.w[row * self.width..][..self.width];
            let terms = x.iter().zip(w).map(|(x, w)| x.to_f64() * w.to_f64());
            *sum = self.bias_ih[row].to_f64() + terms.sum::<f64>();
        }
        if self.case.problem.heads > 1 {
            let found = exact.oracle()?;
            return Ok([found.h_last, found.c_last]);
        }
        let found = oracle::forward(&exact.problem, &exact.inputs())?;
        Ok([found.h_last, found.c_last])
    }

    /// The case on a device, with results filled with NaN.
    pub fn upload(&self, client: &Client) -> Step {
        let upload = |data: &[E]| match data.is_empty() {
            true => client.empty(16),
            false => client.create_from_slice(bytemuck::cast_slice(data)),
        };
        let state = self.case.problem.state();
        let filled = |x: f64| upload(&vec![E::from_f64(x); state]);
        let lstm = self.case.problem.cell == Cell::Lstm;
        let start = |given: &Option<Vec<E>>| match given {
            Some(given) => upload(given),
            None => filled(0.0),
        };
        Step {
            x: upload(&self.x),
            w: upload(&self.w),
            bias_ih: Some(upload(&self.bias_ih)),
            u: upload(&self.case.u),
            bias_hh: self.case.bias.as_deref().map(upload),
            h: start(&self.case.h0),
            c: lstm.then(|| start(&self.case.c0)),
            h_next: filled(f64::NAN),
            c_next: lstm.then(|| filled(f64::NAN)),
        }
    }

    /// The kernel's new states, and new cell states of an LSTM.
    ///
    /// # Errors
    /// Problems that the kernel refuses.
    ///
    /// # Panics
    /// Where the device does not answer.
    pub fn gpu(&self, client: &Client, dtype: Dtype) -> Result<[Vec<E>; 2], Error> {
        let args = self.upload(client);
        step(client, &self.case.problem, self.width, dtype, &args)?;
        let download = |handle: Handle| -> Vec<E> {
            let bytes = client.read_one(handle).expect("reading a result back");
            bytemuck::pod_collect_to_vec(&bytes[..self.case.problem.state() * size_of::<E>()])
        };
        let c_next = args.c_next.map(download);
        Ok([download(args.h_next), c_next.unwrap_or_default()])
    }

    /// Compares both.
    ///
    /// # Errors
    /// Problems that the oracle refuses.
    pub fn compare(&self, found: &[Vec<E>; 2]) -> Result<Vec<Comparison>, Error> {
        let stored = match E::EPSILON > f64::from(f32::EPSILON) {
            true => 2.0 * E::EPSILON,
            false => 0.0,
        };
        let terms = (self.width + self.case.problem.depth()) as f64;
        let bound = 4.0 * f64::from(f32::EPSILON) * terms.sqrt() + stored;
        let input = largest(self.x.iter().map(|x| x.to_f64().abs()));
        let all = ["h_next", "c_next"].into_iter().zip(found);
        Ok(all
            .zip(self.oracle()?)
            .map(|((name, found), reference)| {
                let found: Vec<f64> = found.iter().map(|x| x.to_f64()).collect();
                let scale = largest(reference.iter().map(|x| x.abs()));
                Comparison {
                    tensor: name.into(),
                    error: distance(&found, &reference),
                    allowed: bound * scale.max(input).max(1.0),
                }
            })
            .collect())
    }
}
