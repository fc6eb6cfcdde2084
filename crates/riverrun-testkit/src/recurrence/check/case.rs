//! Random problems, and the oracle and the CPU kernels run on them in any storage type.

use crate::Element;
use crate::check::{Random, stored, wide};
use crate::recurrence::{Problem, Rows, RowsMut, cpu, oracle};

/// The optional arguments of a case.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// An initial state.
    pub h0: bool,
    /// A reset mask.
    pub reset: bool,
    /// From the last step to the first.
    pub reverse: bool,
    /// A gradient of the last state.
    pub d_h_last: bool,
}

impl Options {
    /// All sixteen.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..16).map(Self::nth)
    }

    /// Combination `number` modulo 16.
    pub fn nth(n: usize) -> Self {
        Self {
            h0: n & 1 != 0,
            reset: n & 2 != 0,
            reverse: n & 4 != 0,
            d_h_last: n & 8 != 0,
        }
    }
}

/// A problem and its data, in `f64`.
#[derive(Debug, Clone)]
pub struct Case {
    /// Sizes, gate and direction.
    pub problem: Problem,
    /// Each `[B, T, D]`.
    pub inputs: Vec<Vec<f64>>,
    /// `[B, D]`.
    pub h0: Option<Vec<f64>>,
    /// `[B, T]`.
    pub reset: Option<Vec<bool>>,
    /// `[B, T, D]`.
    pub d_h: Vec<f64>,
    /// `[B, D]`.
    pub d_h_last: Option<Vec<f64>>,
}

/// The results of forward and backward.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// `[B, T, D]`.
    pub h: Vec<f64>,
    /// `[B, D]`.
    pub h_last: Vec<f64>,
    /// The gradient of every input, `[B, T, D]`.
    pub d_inputs: Vec<Vec<f64>>,
    /// `[B, D]`.
    pub d_h0: Vec<f64>,
}

/// Every row of `dim` numbers, `times` times over.
fn repeat_rows(x: &[f64], dim: usize, times: usize) -> Vec<f64> {
    x.chunks(dim)
        .flat_map(|row| std::iter::repeat_n(row, times).flatten().copied())
        .collect()
}

impl Outcome {
    /// Repetition `which` of the outcome of [`Case::widened`], for a case of `dim` channels.
    pub fn narrowed(&self, dim: usize, times: usize, which: usize) -> Self {
        let narrow = |x: &Vec<f64>| -> Vec<f64> {
            x.chunks(dim * times)
                .flat_map(|row| &row[which * dim..][..dim])
                .copied()
                .collect()
        };
        Self {
            h: narrow(&self.h),
            h_last: narrow(&self.h_last),
            d_inputs: self.d_inputs.iter().map(narrow).collect(),
            d_h0: narrow(&self.d_h0),
        }
    }

    /// Every tensor with its name.
    pub fn tensors(&self) -> Vec<(String, &[f64])> {
        let mut tensors = vec![
            ("h".into(), &self.h[..]),
            ("h_last".into(), &self.h_last[..]),
        ];
        for (k, d_input) in self.d_inputs.iter().enumerate() {
            tensors.push((format!("d_input {k}"), d_input));
        }
        tensors.push(("d_h0".into(), &self.d_h0));
        tensors
    }
}

impl Case {
    /// Random data, in the range that the gate's file gives.
    pub fn random(problem: Problem, options: Options, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let shape = problem.shape;
        let gate = problem.gate;
        let inputs: Vec<Vec<f64>> = (0..gate.inputs())
            .map(|k| {
                let uniform = random.vec(shape.elements(), 1.0);
                uniform.into_iter().map(|x| gate.sample(k, x)).collect()
            })
            .collect();
        let mark = |_| random.bits().is_multiple_of(8);
        let reset = options
            .reset
            .then(|| (0..shape.batch * shape.steps).map(mark).collect());
        Self {
            problem: problem.reversed(options.reverse),
            inputs,
            h0: options.h0.then(|| random.vec(shape.state(), 1.0)),
            reset,
            d_h: random.vec(shape.elements(), 1.0),
            d_h_last: options.d_h_last.then(|| random.vec(shape.state(), 1.0)),
        }
    }

    /// The same with every channel repeated `times` times, side by side: a large problem whose reference is that of a
    /// small one (see [`Outcome::narrowed`]).
    pub fn widened(&self, times: usize) -> Self {
        let dim = self.problem.shape.dim;
        let widen = |x: &Vec<f64>| repeat_rows(x, dim, times);
        let mut problem = self.problem;
        problem.shape.dim *= times;
        Self {
            problem,
            inputs: self.inputs.iter().map(widen).collect(),
            h0: self.h0.as_ref().map(widen),
            reset: self.reset.clone(),
            d_h: widen(&self.d_h),
            d_h_last: self.d_h_last.as_ref().map(widen),
        }
    }

    /// The same with every number rounded to `E`.
    pub fn rounded<E: Element>(mut self) -> Self {
        let round = |x: &mut Vec<f64>| x.iter_mut().for_each(|x| *x = E::from_f64(*x).to_f64());
        self.inputs.iter_mut().for_each(round);
        self.h0.iter_mut().for_each(round);
        round(&mut self.d_h);
        self.d_h_last.iter_mut().for_each(round);
        self
    }

    /// Runs the reference.
    pub fn oracle(&self) -> Outcome {
        let inputs: Vec<&[f64]> = self.inputs.iter().map(Vec::as_slice).collect();
        let (h0, reset) = (self.h0.as_deref(), self.reset.as_deref());
        let d_h_last = self.d_h_last.as_deref();
        let h = oracle::forward(&self.problem, &inputs, h0, reset).unwrap();
        let d = oracle::backward(&self.problem, &inputs, h0, reset, &self.d_h, d_h_last).unwrap();
        let h_last = oracle::last(&self.problem, &h, h0);
        Outcome {
            h,
            h_last,
            d_inputs: d.inputs,
            d_h0: d.h0,
        }
    }

    /// Runs the CPU kernels with storage in `E`, contiguous, every output filled with NaN first.
    pub fn cpu<E: cpu::Kernels<E>>(&self) -> Outcome {
        let (problem, shape) = (&self.problem, self.problem.shape);
        let poison = |n: usize| vec![E::from_f64(f64::NAN); n];
        let rows = |x| Rows::<E>::contiguous(x, shape).unwrap();

        let inputs: Vec<Vec<E>> = self.inputs.iter().map(|x| stored(x)).collect();
        let inputs: Vec<Rows<E>> = inputs.iter().map(|x| rows(x)).collect();
        let h0 = self.h0.as_deref().map(stored::<E>);
        let (h0, reset) = (h0.as_deref(), self.reset.as_deref());
        let mut h = poison(shape.elements());
        let out = RowsMut::contiguous(&mut h, shape).unwrap();
        cpu::forward(problem, &inputs, h0, reset, out).unwrap();
        let mut h_last = poison(shape.state());
        cpu::last(problem, rows(&h), h0, &mut h_last).unwrap();

        let d_h = stored::<E>(&self.d_h);
        let d_h_last = self.d_h_last.as_deref().map(stored::<E>);
        let mut d_inputs = vec![poison(shape.elements()); inputs.len()];
        let mut d_h0 = poison(shape.state());
        let out = d_inputs
            .iter_mut()
            .map(|x| RowsMut::contiguous(x, shape).unwrap())
            .collect();
        cpu::backward(
            problem,
            &inputs,
            h0,
            reset,
            rows(&h),
            rows(&d_h),
            d_h_last.as_deref(),
            out,
            Some(&mut d_h0),
        )
        .unwrap();

        Outcome {
            h: wide(&h),
            h_last: wide(&h_last),
            d_inputs: d_inputs.iter().map(|x| wide(x)).collect(),
            d_h0: wide(&d_h0),
        }
    }
}
