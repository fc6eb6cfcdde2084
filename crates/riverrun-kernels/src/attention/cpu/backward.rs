//! Backward: once over the queries for their gradients, once over the keys for those of keys and values.

use std::ops::Range;

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::blocks::{Blocks, View, Wide, met, within};
use super::scores::{Along, Differentiate, Scoring, vectorize};
use super::{COLUMNS, ROWS, Task, tasks};
use crate::attention::{Problem, reversed};
use crate::buffer::Buffer;
use crate::error::expect_length;
use crate::simd::level::Level;
use crate::simd::real::Real;
use crate::threads::Shared;
use crate::{Element, Error};

/// The arguments of a backward pass.
#[derive(Debug)]
pub struct Backward<'a, E: Element> {
    /// `[B, T, H, D]`.
    pub q: &'a [E],
    /// `[B, S, Hk, D]`.
    pub k: &'a [E],
    /// `[B, S, Hk, D]`.
    pub v: &'a [E],
    /// `[B, S]`, as in the forward pass.
    pub reset: Option<&'a [bool]>,
    /// `[B, T, H, D]`, what the forward pass wrote.
    pub o: &'a [E],
    /// `[B, H, T]`, what the forward pass wrote.
    pub lse: &'a [E::Acc],
    /// `[B, T, H, D]`, `∂L/∂o`.
    pub d_o: &'a [E],
    /// `[B, T, H, D]`, written.
    pub d_q: &'a mut [E],
    /// `[B, S, Hk, D]`, written.
    pub d_k: &'a mut [E],
    /// `[B, S, Hk, D]`, written.
    pub d_v: &'a mut [E],
}

/// Computes the gradients.
///
/// # Errors
/// As [`forward`](super::forward()).
pub fn backward<E: Element>(problem: &Problem, args: Backward<'_, E>) -> Result<(), Error> {
    let shape = problem.shape;
    problem.check(args.reset.is_some())?;
    let (queries, keys) = (shape.query_elements(), shape.key_elements());
    expect_length("q", queries, args.q.len())?;
    expect_length("k", keys, args.k.len())?;
    expect_length("v", keys, args.v.len())?;
    let marks = args.reset.map_or(shape.marks(), <[bool]>::len);
    expect_length("reset", shape.marks(), marks)?;
    expect_length("o", queries, args.o.len())?;
    expect_length("lse", shape.rows(), args.lse.len())?;
    expect_length("d_o", queries, args.d_o.len())?;
    expect_length("d_q", queries, args.d_q.len())?;
    expect_length("d_k", keys, args.d_k.len())?;
    expect_length("d_v", keys, args.d_v.len())?;
    E::attend_back(problem, args);
    Ok(())
}

pub(super) fn attend_back<E: Element>(problem: &Problem, args: Backward<'_, E>) {
    Level::available()[0].with_token(Run { problem, args });
}

/// The spans of every sequence.
pub(super) fn all_spans(problem: &Problem, reset: Option<&[bool]>) -> Vec<Vec<Range<usize>>> {
    let shape = problem.shape;
    let marks = |b: usize| reset.map(|reset| &reset[b * shape.keys..][..shape.keys]);
    let spans = |b: usize| problem.spans(marks(b));
    (0..shape.batch).into_par_iter().map(spans).collect()
}

/// A problem whose lengths have been checked.
struct Run<'a, 'p, E: Element> {
    problem: &'p Problem,
    args: Backward<'a, E>,
}

impl<E: Element> WithSimd for Run<'_, '_, E> {
    type Output = ();

    fn with_simd<S: Simd>(self, simd: S) {
        let Run { problem, args } = self;
        let shape = problem.shape;
        let (q, d_o) = (Wide::new(args.q), Wide::new(args.d_o));
        let (k, v) = (Wide::new(args.k), Wide::new(args.v));
        let view = |data, length, heads| View {
            data,
            batch: shape.batch,
            length,
            heads,
            dim: shape.dim,
        };
        let side = |data| view(data, shape.queries, shape.heads);
        let (q, d_o) = (side(q.get()), side(d_o.get()));
        let side = |data| view(data, shape.keys, shape.key_heads);
        let (k, v) = (side(k.get()), side(v.get()));
        let spans = all_spans(problem, args.reset);
        let delta = delta(problem, args.o, d_o);
        let delta = delta.as_slice();
        {
            let blocks = [
                Blocks::new::<S>(k, true, true),
                Blocks::new::<S>(v, true, false),
            ];
            let d_q = Shared::new(args.d_q);
            tasks(shape.batch, shape.heads, shape.queries)
                .into_par_iter()
                .for_each(|task| {
                    let end = shape.queries.min(task.first + ROWS);
                    let part = Queries::<E> {
                        problem,
                        rows: [q, d_o],
                        blocks: &blocks,
                        lse: args.lse,
                        delta,
                        spans: &spans[task.sequence][task.first..end],
                        task,
                        d_q,
                    };
                    part.run(simd);
                });
        }
        let spans: Vec<_> = spans
            .par_iter()
            .map(|spans| reversed(spans, shape.keys))
            .collect();
        let blocks = [
            Blocks::new::<S>(q, true, true),
            Blocks::new::<S>(d_o, true, true),
        ];
        let (d_k, d_v) = (Shared::new(args.d_k), Shared::new(args.d_v));
        tasks(shape.batch, shape.key_heads, shape.keys)
            .into_par_iter()
            .for_each(|task| {
                let end = shape.keys.min(task.first + ROWS);
                let part = Keys::<E> {
                    problem,
                    rows: [k, v],
                    blocks: &blocks,
                    lse: args.lse,
                    delta,
                    spans: &spans[task.sequence][task.first..end],
                    task,
                    d_k,
                    d_v,
                };
                part.run(simd);
            });
    }
}

/// `δ`, `[B, H, T]`.
fn delta<E: Element>(problem: &Problem, o: &[E], d_o: View<'_, E::Acc>) -> Buffer<E::Acc> {
    let shape = problem.shape;
    let mut delta = Buffer::scratch(shape.rows());
    let heads = delta.as_mut_slice().par_chunks_mut(shape.queries.max(1));
    heads.enumerate().for_each(|(lane, delta)| {
        let (sequence, head) = (lane / shape.heads, lane % shape.heads);
        for (i, delta) in delta.iter_mut().enumerate() {
            let o = &o[d_o.start(sequence, i, head)..][..shape.dim];
            let above = d_o.row(sequence, i, head);
            let terms = o.iter().zip(above).map(|(o, &d)| o.widen() * d);
            *delta = terms.fold(E::Acc::ZERO, |sum, term| sum + term);
        }
    });
    delta
}

/// A task of the pass over the queries.
struct Queries<'a, E: Element> {
    problem: &'a Problem,
    /// `q` and `d_o`.
    rows: [View<'a, E::Acc>; 2],
    /// `k` and `v`.
    blocks: &'a [Blocks<'a, E::Acc>; 2],
    lse: &'a [E::Acc],
    delta: &'a [E::Acc],
    spans: &'a [Range<usize>],
    task: Task,
    d_q: Shared<'a, E>,
}

impl<E: Element> Queries<'_, E> {
    fn run<S: Simd>(self, simd: S) {
        let shape = self.problem.shape;
        let (dim, rows) = (shape.dim, self.spans.len());
        let Task {
            sequence,
            head,
            first,
        } = self.task;
        let key_head = head / shape.group();
        let scoring = Scoring::<E::Acc>::new(self.problem);
        let mut products = Buffer::<E::Acc>::zeroed(ROWS * COLUMNS);
        let mut d_p = Buffer::<E::Acc>::zeroed(ROWS * COLUMNS);
        let mut sums = Buffer::<E::Acc>::zeroed(rows * dim);
        let (products, d_p) = (products.as_mut_slice(), d_p.as_mut_slice());
        let sums = sums.as_mut_slice();
        let at = (sequence * shape.heads + head) * shape.queries + first;
        for block in met(self.spans) {
            let columns = COLUMNS.min(shape.keys - block * COLUMNS);
            let place = [sequence, first, head];
            for ((view, blocks), out) in self
                .rows
                .iter()
                .zip(self.blocks)
                .zip([&mut *products, &mut *d_p])
            {
                let packed = blocks.across(sequence, key_head, block);
                view.times(simd, place, rows, packed, columns, out);
            }
            let seen: Vec<Range<usize>> =
                self.spans.iter().map(|span| within(span, block)).collect();
            let differentiate = Differentiate {
                scoring,
                products: &mut *products,
                d_p: &mut *d_p,
                lse: Along::Rows(&self.lse[at..]),
                delta: Along::Rows(&self.delta[at..]),
                spans: &seen,
            };
            vectorize(simd, differentiate);
            let place = [sequence, key_head, block];
            self.blocks[0].add_weighted(simd, place, d_p, &seen, sums);
        }
        for i in 0..rows {
            let start = self.rows[0].start(sequence, first + i, head);
            // SAFETY: a task has its queries of its head to itself.
            let d_q = unsafe { self.d_q.slice_mut(start, dim) };
            write(d_q, &sums[i * dim..]);
        }
    }
}

/// A task of the pass over the keys.
struct Keys<'a, E: Element> {
    problem: &'a Problem,
    /// `k` and `v`.
    rows: [View<'a, E::Acc>; 2],
    /// `q` and `d_o`.
    blocks: &'a [Blocks<'a, E::Acc>; 2],
    lse: &'a [E::Acc],
    delta: &'a [E::Acc],
    /// The queries that see each key.
    spans: &'a [Range<usize>],
    task: Task,
    d_k: Shared<'a, E>,
    d_v: Shared<'a, E>,
}

impl<E: Element> Keys<'_, E> {
    fn run<S: Simd>(self, simd: S) {
        let shape = self.problem.shape;
        let (dim, rows) = (shape.dim, self.spans.len());
        let Task {
            sequence,
            head,
            first,
        } = self.task;
        let scoring = Scoring::<E::Acc>::new(self.problem);
        let mut products = Buffer::<E::Acc>::zeroed(ROWS * COLUMNS);
        let mut d_p = Buffer::<E::Acc>::zeroed(ROWS * COLUMNS);
        let (products, d_p) = (products.as_mut_slice(), d_p.as_mut_slice());
        let mut d_keys = Buffer::<E::Acc>::zeroed(rows * dim);
        let mut d_values = Buffer::<E::Acc>::zeroed(rows * dim);
        let (d_keys, d_values) = (d_keys.as_mut_slice(), d_values.as_mut_slice());
        for query_head in head * shape.group()..(head + 1) * shape.group() {
            let at = (sequence * shape.heads + query_head) * shape.queries;
            for block in met(self.spans) {
                let columns = COLUMNS.min(shape.queries - block * COLUMNS);
                let place = [sequence, first, head];
                for ((view, blocks), out) in self
                    .rows
                    .iter()
                    .zip(self.blocks)
                    .zip([&mut *products, &mut *d_p])
                {
                    let packed = blocks.across(sequence, query_head, block);
                    view.times(simd, place, rows, packed, columns, out);
                }
                let mut lse = [E::Acc::ZERO; COLUMNS];
                let mut delta = [E::Acc::ZERO; COLUMNS];
                let queries = at + block * COLUMNS..at + block * COLUMNS + columns;
                lse[..columns].copy_from_slice(&self.lse[queries.clone()]);
                delta[..columns].copy_from_slice(&self.delta[queries]);
                let seen: Vec<Range<usize>> =
                    self.spans.iter().map(|span| within(span, block)).collect();
                let differentiate = Differentiate {
                    scoring,
                    products: &mut *products,
                    d_p: &mut *d_p,
                    lse: Along::Columns(&lse),
                    delta: Along::Columns(&delta),
                    spans: &seen,
                };
                vectorize(simd, differentiate);
                let place = [sequence, query_head, block];
                self.blocks[0].add_weighted(simd, place, d_p, &seen, d_keys);
                self.blocks[1].add_weighted(simd, place, products, &seen, d_values);
            }
        }
        for i in 0..rows {
            let start = self.rows[0].start(sequence, first + i, head);
            // SAFETY: a task has its keys of its head to itself.
            let (d_k, d_v) = unsafe {
                (
                    self.d_k.slice_mut(start, dim),
                    self.d_v.slice_mut(start, dim),
                )
            };
            write(d_k, &d_keys[i * dim..]);
            write(d_v, &d_values[i * dim..]);
        }
    }
}

/// Rounds to storage.
fn write<E: Element>(to: &mut [E], from: &[E::Acc]) {
    for (to, &from) in to.iter_mut().zip(from) {
        *to = E::narrow(from);
    }
}
