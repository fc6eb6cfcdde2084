//! Forward: some columns of a head's state through all steps, in vector registers along the columns.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::super::{Erase, Inputs, Problem};
use super::Kernels;
use super::step::{Head, VECTORS, Vectors, narrow, widen};
use crate::buffer::Buffer;
use crate::error::expect_length;
use crate::simd::real::Real;
use crate::simd::vector::{Vector, lanes};
use crate::threads::{Shared, parallel_for};
use crate::{Element, Error};

/// Columns of a task.
const COLUMNS: usize = 64;

/// Registers of a row of a tile. A tile of 128 rows takes most of the first cache, and the sums over rows are so many chains of
/// additions.
const REGISTERS: usize = 4;

/// A row of a tile.
type Row<S, R> = [Vector<S, R>; REGISTERS];

/// Computes `o`, `[B, T, H, V]`, and the state after the last step, `[B, H, K, V]`; every element is written.
///
/// # Errors
/// [`Error::MatrixState`], [`Error::Length`]; then nothing has been written.
pub fn forward<E: Kernels<E>>(
    problem: &Problem,
    inputs: &Inputs<&[E], &[E::Acc], &[bool]>,
    o: &mut [E],
    last: &mut [E::Acc],
) -> Result<(), Error> {
    E::matrix_states(problem, inputs, o, last)
}

pub(super) fn states<E: Element>(
    problem: &Problem,
    inputs: &Inputs<&[E], &[E::Acc], &[bool]>,
    o: &mut [E],
    last: &mut [E::Acc],
) -> Result<(), Error> {
    problem.check(&inputs.lengths())?;
    let shape = problem.shape;
    expect_length("o", shape.values(), o.len())?;
    expect_length("the last state", shape.state(), last.len())?;
    let (o, last) = (Shared::new(o), Shared::new(last));
    let arch = Arch::new();
    let tasks = shape.value.div_ceil(COLUMNS);
    parallel_for(shape.states() * tasks, |task| {
        let first = task % tasks * COLUMNS;
        arch.dispatch(Forward {
            head: Head::new(problem, inputs, task / tasks),
            columns: first..(first + COLUMNS).min(shape.value),
            into: Into::Output { o, last },
        });
    });
    Ok(())
}

/// Where results go.
pub enum Into<'a, E: Element> {
    /// `[B, T, H, V]` and `[B, H, K, V]`.
    Output {
        o: Shared<'a, E>,
        last: Shared<'a, E::Acc>,
    },
    /// What the backward pass needs of what steps read, `[T, V]`: `v - y`, or `y` of a separate erase.
    Read(&'a mut [E::Acc]),
}

/// Some columns of a head.
pub struct Forward<'a, E: Element> {
    pub head: Head<'a, E>,
    pub columns: Range<usize>,
    pub into: Into<'a, E>,
}

impl<E: Element> WithSimd for Forward<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        match (self.head.problem.reads(), self.head.problem.erase) {
            (_, Erase::Separate) => self.tiles::<S, true, true>(simd),
            (true, _) => self.tiles::<S, true, false>(simd),
            (false, _) => self.tiles::<S, false, false>(simd),
        }
    }
}

impl<E: Element> Forward<'_, E> {
    /// Every tile. Steps read the state before them (`READ`), and write along a vector of their own (`WRITE`).
    #[inline(always)]
    pub fn tiles<S: Simd, const READ: bool, const WRITE: bool>(&mut self, simd: S) {
        let width = REGISTERS * lanes::<S, E::Acc>();
        let Range { start, end } = self.columns;
        for first in (start..end).step_by(width) {
            let columns = first..(first + width).min(end);
            self.tile::<S, READ, WRITE>(simd, columns);
        }
    }

    /// All steps of a tile.
    #[inline(always)]
    fn tile<S: Simd, const READ: bool, const WRITE: bool>(
        &mut self,
        simd: S,
        columns: Range<usize>,
    ) {
        let head = self.head;
        let shape = head.problem.shape;
        let width = REGISTERS * lanes::<S, E::Acc>();
        let padded = shape.key.next_multiple_of(lanes::<S, E::Acc>());
        let mut state = Buffer::zeroed(shape.key * width);
        let state = state.as_mut_slice();
        if let Some(initial) = head.inputs.initial {
            let initial = initial[head.state()..].chunks_exact(shape.value);
            for (to, from) in state.chunks_exact_mut(width).zip(initial) {
                to[..columns.len()].copy_from_slice(&from[columns.clone()]);
            }
        }
        let mut vectors = Buffer::zeroed(VECTORS * padded);
        let [mut values, mut row] = [[E::Acc::ZERO; COLUMNS]; 2];
        for t in 0..shape.steps {
            let vectors = vectors.as_mut_slice();
            let scalars = head.vectors(simd, t, Vectors::of(vectors.chunks_exact_mut(padded)));
            let step = Vectors::of(vectors.chunks_exact(padded));
            if head.is_reset(t) {
                state.fill(E::Acc::ZERO);
            }
            widen(&mut values, &head.values(head.inputs.v, t)[columns.clone()]);
            let v = load(simd, &values);
            let mut y = splat(simd, E::Acc::ZERO);
            if READ {
                y = read(simd, state, step.read);
            }
            let (mut u, mut kept) = (v, y);
            if READ && !WRITE && !head.problem.bonus {
                let beta = Vector::splat(simd, scalars.beta);
                for j in 0..REGISTERS {
                    kept[j] = v[j] - y[j];
                    u[j] = beta * kept[j];
                }
            }
            let mut o = update::<S, _, WRITE>(simd, state, &step, u, y);
            match &mut self.into {
                Into::Output { o: to, .. } => {
                    if head.problem.bonus {
                        let direct = Vector::splat(simd, scalars.direct);
                        for j in 0..REGISTERS {
                            o[j] = direct.mul_add(v[j], y[j]);
                        }
                    }
                    store(&mut row, o);
                    let first = head.row(t) * shape.value + columns.start;
                    // SAFETY: no other task has these columns of this head.
                    narrow(unsafe { to.slice_mut(first, columns.len()) }, &row);
                }
                Into::Read(to) => {
                    store(&mut row, kept);
                    let to = &mut to[t * shape.value..][columns.clone()];
                    to.copy_from_slice(&row[..columns.len()]);
                }
            }
        }
        if let Into::Output { last, .. } = self.into {
            for (c, from) in state.chunks_exact(width).enumerate() {
                let first = head.state() + c * shape.value + columns.start;
                // SAFETY: no other task has these columns of this head.
                let to = unsafe { last.slice_mut(first, columns.len()) };
                to.copy_from_slice(&from[..columns.len()]);
            }
        }
    }
}

#[inline(always)]
fn splat<S: Simd, R: Real>(simd: S, x: R) -> Row<S, R> {
    [Vector::splat(simd, x); REGISTERS]
}

#[inline(always)]
fn load<S: Simd, R: Real>(simd: S, from: &[R]) -> Row<S, R> {
    let from = R::split::<S>(from).0;
    // Not `from_fn`, whose closure is compiled apart, without the caller's instruction set.
    let mut x = splat(simd, R::ZERO);
    for j in 0..REGISTERS {
        x[j].lanes = from[j];
    }
    x
}

#[inline(always)]
fn store<S: Simd, R: Real>(to: &mut [R], x: Row<S, R>) {
    let to = R::split_mut::<S>(to).0;
    for j in 0..REGISTERS {
        to[j] = x[j].lanes;
    }
}

/// `Sᵀ weights`. Even and odd rows have sums of their own, so that twice as many additions are under way.
#[inline(always)]
fn read<S: Simd, R: Real>(simd: S, state: &[R], weights: &[R]) -> Row<S, R> {
    let (mut sum, mut odd) = (splat(simd, R::ZERO), splat(simd, R::ZERO));
    let (rows, _) = R::split::<S>(state).0.as_chunks::<REGISTERS>();
    let (pairs, last) = rows.as_chunks::<2>();
    let (weights, last_weight) = weights[..rows.len()].as_chunks::<2>();
    for (rows, weights) in pairs.iter().zip(weights) {
        add(simd, &mut sum, &rows[0], weights[0]);
        add(simd, &mut odd, &rows[1], weights[1]);
    }
    for (row, weight) in last.iter().zip(last_weight) {
        add(simd, &mut sum, row, *weight);
    }
    for j in 0..REGISTERS {
        sum[j] = sum[j] + odd[j];
    }
    sum
}

/// `sum += weight row`.
#[inline(always)]
fn add<S: Simd, R: Real>(simd: S, sum: &mut Row<S, R>, row: &[R::Lanes<S>; REGISTERS], weight: R) {
    let weight = Vector::splat(simd, weight);
    for j in 0..REGISTERS {
        sum[j] = weight.mul_add(Vector::new(simd, row[j]), sum[j]);
    }
}

/// The state after a step, and what the query reads of it.
#[inline(always)]
fn update<S: Simd, R: Real, const WRITE: bool>(
    simd: S,
    state: &mut [R],
    step: &Vectors<&[R]>,
    u: Row<S, R>,
    w: Row<S, R>,
) -> Row<S, R> {
    let mut o = splat(simd, R::ZERO);
    let (rows, _) = R::split_mut::<S>(state).0.as_chunks_mut::<REGISTERS>();
    let rows = rows.iter_mut().zip(step.alpha).zip(step.k).zip(step.q);
    for ((((row, alpha), k), q), write) in rows.zip(step.write) {
        let (alpha, k) = (Vector::splat(simd, *alpha), Vector::splat(simd, *k));
        let (q, write) = (Vector::splat(simd, *q), Vector::splat(simd, *write));
        for j in 0..REGISTERS {
            let mut s: Vector<S, R> = alpha * Vector::new(simd, row[j]);
            s = k.mul_add(u[j], s);
            if WRITE {
                s = write.mul_add(w[j], s);
            }
            row[j] = s.lanes;
            o[j] = q.mul_add(s, o[j]);
        }
    }
    o
}
