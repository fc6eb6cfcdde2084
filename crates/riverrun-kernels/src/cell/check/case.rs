//! Random problems, and the CPU form run on them with every output poisoned first.

use super::heads::by_head;
use crate::cell::{Cell, InputGrads, Inputs, OutputGrads, Outputs, Problem, cpu, oracle};
use crate::check::{Random, wide};
use crate::{Element, Error};

/// The optional inputs of a case.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// `bias`.
    pub bias: bool,
    /// `h0`, and `c0` for the LSTM.
    pub initial: bool,
    /// `reset`.
    pub reset: bool,
    /// `lengths`: of 0 to `T` steps, some beyond.
    pub lengths: bool,
    /// The gradients of the last states.
    pub last_grads: bool,
    /// No `∂L/∂h`.
    pub no_d_h: bool,
}

impl Options {
    /// Every one.
    pub const ALL: Self = Self {
        bias: true,
        initial: true,
        reset: true,
        lengths: false,
        last_grads: true,
        no_d_h: false,
    };
    /// None.
    pub const NONE: Self = Self {
        bias: false,
        initial: false,
        reset: false,
        lengths: false,
        last_grads: false,
        no_d_h: false,
    };
}

/// A problem with its inputs and incoming gradients in type `E`.
#[derive(Debug, Clone)]
pub struct Case<E> {
    /// Sizes, cell, direction.
    pub problem: Problem,
    /// `[B, T, G·H]`.
    pub xg: Vec<E>,
    /// `[G·H, H/N]`.
    pub u: Vec<E>,
    /// `[G·H]`.
    pub bias: Option<Vec<E>>,
    /// `[B, H]`.
    pub h0: Option<Vec<E>>,
    /// `[B, H]`, LSTM only.
    pub c0: Option<Vec<E>>,
    /// `[B, T]`.
    pub reset: Option<Vec<bool>>,
    /// `[B]`.
    pub lengths: Option<Vec<u32>>,
    /// `[B, T, H]`.
    pub d_h: Option<Vec<E>>,
    /// `[B, H]`.
    pub d_h_last: Option<Vec<E>>,
    /// `[B, H]`, LSTM only.
    pub d_c_last: Option<Vec<E>>,
}

impl<E: Element> Case<E> {
    /// Random numbers, rounded to `E` where they are stored.
    pub fn random(problem: Problem, options: Options, seed: u64) -> Self {
        let mut rng = Random::new(seed);
        let scale = 1.0 / (problem.depth() as f64).sqrt();
        let mut some = |wanted: bool, len: usize, scale: f64| {
            let values: Vec<E> = rng.vec(len, scale).into_iter().map(E::from_f64).collect();
            wanted.then_some(values)
        };
        let lstm = problem.cell == Cell::Lstm;
        let rows = problem.batch * problem.steps;
        Case {
            problem,
            xg: some(true, rows * problem.gate_width(), 2.0).unwrap(),
            u: some(true, problem.gate_width() * problem.depth(), 1.5 * scale).unwrap(),
            bias: some(options.bias, problem.gate_width(), 1.0),
            h0: some(options.initial, problem.state(), 1.0),
            c0: some(options.initial && lstm, problem.cell_state(), 1.0),
            d_h: some(!options.no_d_h, problem.outputs(), 1.0),
            d_h_last: some(options.last_grads, problem.state(), 1.0),
            d_c_last: some(options.last_grads && lstm, problem.cell_state(), 1.0),
            reset: options
                .reset
                .then(|| (0..rows).map(|_| rng.bits().is_multiple_of(7)).collect()),
            lengths: options.lengths.then(|| {
                let range = problem.steps as u64 + 2;
                (0..problem.batch)
                    .map(|_| rng.below(range) as u32)
                    .collect()
            }),
        }
    }

    /// Whether time `t` of sequence `b` is padding.
    pub fn is_padding(&self, b: usize, t: usize) -> bool {
        self.inputs().is_padding(b, t)
    }

    /// The inputs of forward.
    pub fn inputs(&self) -> Inputs<'_, E> {
        Inputs {
            xg: &self.xg,
            u: &self.u,
            bias: self.bias.as_deref(),
            h0: self.h0.as_deref(),
            c0: self.c0.as_deref(),
            reset: self.reset.as_deref(),
            lengths: self.lengths.as_deref(),
        }
    }

    /// The incoming gradients of backward.
    pub fn grads(&self) -> OutputGrads<'_, E> {
        OutputGrads {
            d_h: self.d_h.as_deref(),
            d_h_last: self.d_h_last.as_deref(),
            d_c_last: self.d_c_last.as_deref(),
        }
    }

    /// The same numbers in another type.
    pub fn to<F: Element>(&self) -> Case<F> {
        let all = |v: &Vec<E>| {
            v.iter()
                .map(|x| F::from_f64(x.to_f64()))
                .collect::<Vec<F>>()
        };
        let some = |v: &Option<Vec<E>>| v.as_ref().map(all);
        Case {
            problem: self.problem,
            xg: all(&self.xg),
            u: all(&self.u),
            bias: some(&self.bias),
            h0: some(&self.h0),
            c0: some(&self.c0),
            reset: self.reset.clone(),
            lengths: self.lengths.clone(),
            d_h: some(&self.d_h),
            d_h_last: some(&self.d_h_last),
            d_c_last: some(&self.d_c_last),
        }
    }

    /// Forward and backward on the CPU.
    ///
    /// # Panics
    /// Where the problem does not fit the case.
    pub fn run(&self, routine: cpu::Routine) -> Results<E>
    where
        E: cpu::Kernels<E>,
    {
        let p = &self.problem;
        let poison = |len: usize| vec![E::from_f64(f64::NAN); len];
        let mut r = Results {
            h: poison(p.outputs()),
            h_last: poison(p.state()),
            c_last: poison(p.cell_state()),
            d_xg: poison(p.batch * p.steps * p.gate_width()),
            d_u: poison(p.gate_width() * p.hidden),
            d_bias: poison(p.gate_width()),
            d_h0: poison(p.state()),
            d_c0: poison(p.cell_state()),
        };
        let mut saved = vec![E::from_f64(f64::NAN).widen(); p.saved()];
        let outputs = Outputs {
            h: &mut r.h,
            h_last: &mut r.h_last,
            c_last: Some(&mut r.c_last),
            saved: Some(&mut saved),
        };
        cpu::forward(p, &self.inputs(), outputs, routine).expect("a problem that fits");
        let into = InputGrads {
            d_xg: &mut r.d_xg,
            d_u: Some(&mut r.d_u),
            d_bias: Some(&mut r.d_bias),
            d_h0: Some(&mut r.d_h0),
            d_c0: Some(&mut r.d_c0),
        };
        cpu::backward(
            p,
            &self.inputs(),
            &r.h,
            &saved,
            &self.grads(),
            into,
            routine,
        )
        .expect("a problem that forward took");
        r
    }
}

impl Case<f64> {
    /// The reference: the oracle in `f64`.
    ///
    /// # Errors
    /// The errors of the oracle.
    pub fn oracle(&self) -> Result<Results<f64>, Error> {
        by_head(self, |case| {
            let f = oracle::forward(&case.problem, &case.inputs())?;
            let g = oracle::backward(&case.problem, &case.inputs(), &case.grads())?;
            Ok(Results {
                h: f.h,
                h_last: f.h_last,
                c_last: f.c_last,
                d_xg: g.d_xg,
                d_u: g.d_u,
                d_bias: g.d_bias,
                d_h0: g.d_h0,
                d_c0: g.d_c0,
            })
        })
    }
}

/// The results of forward and backward.
#[derive(Debug, Clone, PartialEq)]
pub struct Results<E> {
    /// `[B, T, H]`.
    pub h: Vec<E>,
    /// `[B, H]`.
    pub h_last: Vec<E>,
    /// `[B, H]`, LSTM only.
    pub c_last: Vec<E>,
    /// `[B, T, G·H]`.
    pub d_xg: Vec<E>,
    /// `[G·H, H/N]`.
    pub d_u: Vec<E>,
    /// `[G·H]`.
    pub d_bias: Vec<E>,
    /// `[B, H]`.
    pub d_h0: Vec<E>,
    /// `[B, H]`, LSTM only.
    pub d_c0: Vec<E>,
}

impl<E: Element> Results<E> {
    /// Each by its name, widened.
    pub fn named(&self) -> [(&'static str, Vec<f64>); 8] {
        [
            ("h", wide(&self.h)),
            ("h_last", wide(&self.h_last)),
            ("c_last", wide(&self.c_last)),
            ("d_xg", wide(&self.d_xg)),
            ("d_u", wide(&self.d_u)),
            ("d_bias", wide(&self.d_bias)),
            ("d_h0", wide(&self.d_h0)),
            ("d_c0", wide(&self.d_c0)),
        ]
    }

    /// The bits of everything, so that NaN equals NaN.
    pub fn bits(&self) -> Vec<u64> {
        self.named()
            .iter()
            .flat_map(|(_, v)| v.iter().map(|x| x.to_bits()))
            .collect()
    }
}

/// Splits and instruction sets that a check of the CPU form covers, on two and three threads.
pub fn routines() -> Vec<cpu::Routine> {
    let mut all = Vec::new();
    for &level in cpu::Level::available() {
        for (split, threads) in [
            (cpu::Split::None, 1),
            (cpu::Split::Batch, 2),
            (cpu::Split::Units, 2),
            (cpu::Split::Units, 3),
        ] {
            all.push(cpu::Routine {
                split,
                threads: Some(threads),
                level: Some(level),
            });
        }
    }
    all
}
