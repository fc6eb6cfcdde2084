//! On the CPU: vector instructions, a task for a run of rows.

use pulp::{Arch, Simd, WithSimd};

use super::{NO_MEMORY, Problem};
use crate::element::compiled_here;
use crate::error::expect_length;
use crate::simd::pair::{LANES, Pair, load, load_padded, pair_len, store, store_padded};
use crate::simd::real::Real;
use crate::simd::vector::Vector;
use crate::threads::pieces::{InPieces, Pieces};
use crate::{Element, Error};

/// Rows of a task.
const RUN: usize = 64;

/// Inputs of both passes: see the [formulas](super).
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a, E> {
    /// `[B, T, D]`.
    pub p: &'a [E],
    /// `[B, T, D]`.
    pub q: &'a [E],
    /// `[B, T, D]`.
    pub x: &'a [E],
    /// `[2 D]`, zeros when absent.
    pub bias: Option<&'a [E]>,
    /// `[D]`.
    pub rate: &'a [E],
    /// `[B, T]`.
    pub reset: Option<&'a [bool]>,
}

/// The gradients of the inputs, written.
#[derive(Debug)]
pub struct Gradients<'a, E> {
    /// `[B, T, D]`.
    pub p: &'a mut [E],
    /// `[B, T, D]`.
    pub q: &'a mut [E],
    /// `[B, T, D]`.
    pub x: &'a mut [E],
    /// `[2 D]`.
    pub bias: &'a mut [E],
    /// `[D]`.
    pub rate: &'a mut [E],
}

impl<E: Element> Inputs<'_, E> {
    fn check(&self, problem: &Problem) -> Result<(), Error> {
        let (dim, all, rows) = (problem.dim, problem.elements(), problem.rows());
        if dim == 0 {
            return Err(Error::NoChannels);
        }
        expect_length("p", all, self.p.len())?;
        expect_length("q", all, self.q.len())?;
        expect_length("x", all, self.x.len())?;
        expect_length("bias", 2 * dim, self.bias.map_or(2 * dim, <[E]>::len))?;
        expect_length("rate", dim, self.rate.len())?;
        expect_length("reset", rows, self.reset.map_or(rows, <[bool]>::len))
    }

    fn restarts(&self, problem: &Problem, row: usize) -> bool {
        let first = problem.first && row.is_multiple_of(problem.steps);
        first || problem.forget && self.reset.is_some_and(|reset| reset[row])
    }

    /// `columns` of a row: `p`, `q`, `x`, and the biases and rates of these columns.
    fn load<S: Simd>(&self, simd: S, row: usize, column: usize, dim: usize) -> Loaded<S, E> {
        let end = (column + pair_len::<S, E::Acc>()).min(dim);
        let at = row * dim + column..row * dim + end;
        let bias = |from: usize| match self.bias {
            Some(bias) => load_padded(simd, &bias[from + column..from + end]),
            None => load_padded::<S, E>(simd, &[]),
        };
        let rate = load_padded(simd, &self.rate[column..end]);
        let (p, q) = (
            load_padded(simd, &self.p[at.clone()]),
            load_padded(simd, &self.q[at.clone()]),
        );
        Loaded {
            r: gate(p, bias(0)),
            i: gate(q, bias(dim)),
            x: load_padded(simd, &self.x[at]),
            rate,
        }
    }
}

struct Loaded<S: Simd, E: Element> {
    r: Gate<S, E::Acc>,
    i: Gate<S, E::Acc>,
    x: Pair<S, E::Acc>,
    rate: Pair<S, E::Acc>,
}

/// `(σ, 1 - σ)` of each register.
type Gate<S, R> = [(Vector<S, R>, Vector<S, R>); 2];

#[inline(always)]
fn gate<S: Simd, R: Real>(x: Pair<S, R>, bias: Pair<S, R>) -> Gate<S, R> {
    std::array::from_fn(|k| (x[k] + bias[k]).sigmoids())
}

/// Computes `[B, T, 2 D]`.
///
/// # Errors
/// [`Error::Length`], [`Error::NoChannels`].
pub fn forward<E: Kernels<E>>(
    problem: &Problem,
    inputs: Inputs<'_, E>,
    out: &mut [E],
) -> Result<(), Error> {
    E::gates(problem, inputs, out)
}

compiled_here! {
    Kernels<E> {
        fn gates(problem: &Problem, inputs: Inputs<'_, E>, out: &mut [E]) -> Result<(), Error> = gates;
        fn gates_back(problem: &Problem, inputs: Inputs<'_, E>, d_out: &[E], d: Gradients<'_, E>) -> Result<(), Error> = gates_back;
    }
}

fn gates<E: Element>(problem: &Problem, inputs: Inputs<'_, E>, out: &mut [E]) -> Result<(), Error> {
    inputs.check(problem)?;
    expect_length("out", problem.elements().saturating_mul(2), out.len())?;
    let arch = Arch::new();
    let tasks = out.par_chunks_mut(2 * RUN * problem.dim).enumerate();
    tasks.for_each(|(task, out)| {
        arch.dispatch(Forward {
            problem,
            inputs,
            first: task * RUN,
            out,
        });
    });
    Ok(())
}

struct Forward<'a, E> {
    problem: &'a Problem,
    inputs: Inputs<'a, E>,
    first: usize,
    out: &'a mut [E],
}

impl<E: Element> WithSimd for Forward<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (dim, n) = (self.problem.dim, pair_len::<S, E::Acc>());
        for (k, out) in self.out.chunks_mut(2 * dim).enumerate() {
            let row = self.first + k;
            let restarts = self.inputs.restarts(self.problem, row);
            let (rates, scaled) = out.split_at_mut(dim);
            let columns = rates.chunks_mut(n).zip(scaled.chunks_mut(n)).enumerate();
            for (c, (rates, scaled)) in columns {
                let at = self.inputs.load(simd, row, c * n, dim);
                store_padded::<S, E>(rates, std::array::from_fn(|k| at.rate[k] * at.r[k].0));
                store_padded::<S, E>(scaled, std::array::from_fn(|k| at.x[k] * at.i[k].0));
            }
            if restarts {
                rates.fill(E::from_f64(NO_MEMORY));
            }
        }
    }
}

/// Computes the gradients from that of the result.
///
/// # Errors
/// As [`forward`].
pub fn backward<E: Kernels<E>>(
    problem: &Problem,
    inputs: Inputs<'_, E>,
    d_out: &[E],
    d: Gradients<'_, E>,
) -> Result<(), Error> {
    E::gates_back(problem, inputs, d_out, d)
}

fn gates_back<E: Element>(
    problem: &Problem,
    inputs: Inputs<'_, E>,
    d_out: &[E],
    d: Gradients<'_, E>,
) -> Result<(), Error> {
    inputs.check(problem)?;
    let (dim, all) = (problem.dim, problem.elements());
    expect_length("d_out", all.saturating_mul(2), d_out.len())?;
    expect_length("d_p", all, d.p.len())?;
    expect_length("d_q", all, d.q.len())?;
    expect_length("d_x", all, d.x.len())?;
    expect_length("d_bias", 2 * dim, d.bias.len())?;
    expect_length("d_rate", dim, d.rate.len())?;
    let arch = Arch::new();
    let run = RUN * dim;
    let rows = (d.p.par_chunks_mut(run))
        .zip(d.q.par_chunks_mut(run))
        .zip(d.x.par_chunks_mut(run))
        .zip(d_out.par_chunks(2 * run))
        .enumerate();
    // Sums over rows: a task for a run of them, added in order.
    let padded = dim.next_multiple_of(LANES);
    let parts = rows.map(|(task, (((p, q), x), d_out))| {
        let mut sums = vec![E::Acc::ZERO; 3 * padded];
        arch.dispatch(Backward {
            problem,
            inputs,
            first: task * RUN,
            d_out,
            d: [p, q, x],
            sums: &mut sums,
        });
        sums
    });
    let mut sums = vec![E::Acc::ZERO; 3 * padded];
    for part in parts {
        for (sum, part) in sums.iter_mut().zip(part) {
            *sum += part;
        }
    }
    let (bias_r, bias_i) = d.bias.split_at_mut(dim);
    let outs = [bias_r, bias_i, d.rate];
    for (out, sums) in outs.into_iter().zip(sums.chunks(padded)) {
        arch.dispatch(Total { sums, out });
    }
    Ok(())
}

/// Sums in the order of a pair's registers, which [`Backward`] writes.
struct Total<'a, E: Element> {
    sums: &'a [E::Acc],
    out: &'a mut [E],
}

impl<E: Element> WithSimd for Total<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let n = pair_len::<S, E::Acc>();
        for (out, sums) in self.out.chunks_mut(n).zip(self.sums.chunks(n)) {
            store_padded::<S, E>(out, load(simd, sums));
        }
    }
}

struct Backward<'a, E: Element> {
    problem: &'a Problem,
    inputs: Inputs<'a, E>,
    first: usize,
    d_out: &'a [E],
    d: [&'a mut [E]; 3],
    /// Gradients of the two biases and of the rate, each padded to whole pairs of registers.
    sums: &'a mut [E::Acc],
}

impl<E: Element> WithSimd for Backward<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (dim, n) = (self.problem.dim, pair_len::<S, E::Acc>());
        let [d_p, d_q, d_x] = self.d;
        let padded = self.sums.len() / 3;
        let (bias_r, rest) = self.sums.split_at_mut(padded);
        let (bias_i, rate) = rest.split_at_mut(padded);
        for (k, d_out) in self.d_out.chunks(2 * dim).enumerate() {
            let row = self.first + k;
            let keeps = E::Acc::from_f64(match self.inputs.restarts(self.problem, row) {
                true => 0.0,
                false => 1.0,
            });
            for column in (0..dim).step_by(n) {
                let end = (column + n).min(dim);
                let own = k * dim + column..k * dim + end;
                let at = self.inputs.load(simd, row, column, dim);
                let d_rate: Pair<S, E::Acc> = load_padded(simd, &d_out[column..end]);
                let d_input: Pair<S, E::Acc> = load_padded(simd, &d_out[dim + column..dim + end]);
                let kept = |k: usize| d_rate[k] * d_rate[k].constant(keeps);
                let p: Pair<S, E::Acc> = std::array::from_fn(|k| {
                    let (r, rest) = at.r[k];
                    kept(k) * at.rate[k] * r * rest
                });
                let q: Pair<S, E::Acc> = std::array::from_fn(|k| {
                    let (i, rest) = at.i[k];
                    d_input[k] * at.x[k] * i * rest
                });
                store_padded::<S, E>(&mut d_p[own.clone()], p);
                store_padded::<S, E>(&mut d_q[own.clone()], q);
                let x = std::array::from_fn(|k| d_input[k] * at.i[k].0);
                store_padded::<S, E>(&mut d_x[own], x);
                add(simd, &mut bias_r[column..column + n], p);
                add(simd, &mut bias_i[column..column + n], q);
                let slope = std::array::from_fn(|k| kept(k) * at.r[k].0);
                add(simd, &mut rate[column..column + n], slope);
            }
        }
    }
}

/// `sums += x`.
#[inline(always)]
fn add<S: Simd, R: Real>(simd: S, sums: &mut [R], x: Pair<S, R>) {
    let held = load(simd, sums);
    store(sums, [held[0] + x[0], held[1] + x[1]]);
}
