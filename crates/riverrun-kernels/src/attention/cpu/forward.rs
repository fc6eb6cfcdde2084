//! Forward: the softmax is carried along the keys, block by block.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::blocks::{Blocks, View, Wide, met, within};
use super::few::{self, FEW};
use super::scores::{Scoring, Softmax, vectorize};
use super::{COLUMNS, ROWS, Task, tasks};
use crate::attention::Problem;
use crate::buffer::Buffer;
use crate::error::expect_length;
use crate::simd::level::Level;
use crate::simd::real::Real;
use crate::threads::{Shared, parallel_for};
use crate::{Element, Error};

/// The arguments of a forward pass.
#[derive(Debug)]
pub struct Forward<'a, E: Element> {
    /// `[B, T, H, D]`.
    pub q: &'a [E],
    /// `[B, S, Hk, D]`.
    pub k: &'a [E],
    /// `[B, S, Hk, D]`.
    pub v: &'a [E],
    /// `[B, S]`: true where a document starts.
    pub reset: Option<&'a [bool]>,
    /// `[B, T, H, D]`, written.
    pub o: &'a mut [E],
    /// `[B, H, T]`, written.
    pub lse: &'a mut [E::Acc],
}

/// Computes `o` and `lse`.
///
/// # Errors
/// The errors of [`Problem::check`], [`Error::Length`]; nothing has been written then.
pub fn forward<E: super::Kernels<E>>(problem: &Problem, args: Forward<'_, E>) -> Result<(), Error> {
    let shape = problem.shape;
    problem.check(args.reset.is_some())?;
    expect_length("q", shape.query_elements(), args.q.len())?;
    expect_length("k", shape.key_elements(), args.k.len())?;
    expect_length("v", shape.key_elements(), args.v.len())?;
    let marks = args.reset.map_or(shape.marks(), <[bool]>::len);
    expect_length("reset", shape.marks(), marks)?;
    expect_length("o", shape.query_elements(), args.o.len())?;
    expect_length("lse", shape.rows(), args.lse.len())?;
    E::attend(problem, args);
    Ok(())
}

pub(super) fn attend<E: Element>(problem: &Problem, args: Forward<'_, E>) {
    Level::available()[0].with_token(Run { problem, args });
}

/// A problem whose lengths have been checked.
struct Run<'a, 'p, E: Element> {
    problem: &'p Problem,
    args: Forward<'a, E>,
}

impl<E: Element> WithSimd for Run<'_, '_, E> {
    type Output = ();

    fn with_simd<S: Simd>(self, simd: S) {
        let Run { problem, args } = self;
        let shape = problem.shape;
        let (q, k, v) = (Wide::new(args.q), Wide::new(args.k), Wide::new(args.v));
        let view = |data, length, heads| View {
            data,
            batch: shape.batch,
            length,
            heads,
            dim: shape.dim,
        };
        let q = view(q.get(), shape.queries, shape.heads);
        let keys = view(k.get(), shape.keys, shape.key_heads);
        let values = view(v.get(), shape.keys, shape.key_heads);
        let others = match shape.queries <= FEW {
            true => Others::InPlace([keys, values]),
            false => {
                let keys = Blocks::new::<S>(keys, true, false);
                Others::Packed([keys, Blocks::new::<S>(values, false, true)])
            }
        };
        let spans = super::backward::all_spans(problem, args.reset);
        let (o, lse) = (Shared::new(args.o), Shared::new(args.lse));
        let tasks = tasks(shape.batch, shape.heads, shape.queries);
        parallel_for(tasks.len(), |index| {
            let task = tasks[index];
            let spans = &spans[task.sequence];
            let end = shape.queries.min(task.first + ROWS);
            let rows = Rows::<E> {
                problem,
                q,
                others: &others,
                spans: &spans[task.first..end],
                task,
                o,
                lse,
            };
            rows.run(simd);
        });
    }
}

/// Keys and values.
enum Others<'a, R> {
    Packed([Blocks<'a, R>; 2]),
    InPlace([View<'a, R>; 2]),
}

/// One task.
struct Rows<'a, E: Element> {
    problem: &'a Problem,
    q: View<'a, E::Acc>,
    others: &'a Others<'a, E::Acc>,
    spans: &'a [Range<usize>],
    task: Task,
    o: Shared<'a, E>,
    lse: Shared<'a, E::Acc>,
}

impl<E: Element> Rows<'_, E> {
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
        let mut scores = Buffer::<E::Acc>::zeroed(ROWS * COLUMNS);
        let mut sums = Buffer::<E::Acc>::zeroed(rows * dim);
        let mut tops = [E::Acc::LOWEST; ROWS];
        let mut totals = [E::Acc::ZERO; ROWS];
        for block in met(self.spans) {
            let scores = scores.as_mut_slice();
            let columns = COLUMNS.min(shape.keys - block * COLUMNS);
            let seen: Vec<Range<usize>> =
                self.spans.iter().map(|span| within(span, block)).collect();
            let place = [sequence, first, head];
            match self.others {
                Others::Packed([keys, _]) => {
                    let packed = keys.across(sequence, key_head, block);
                    self.q.times(simd, place, packed, columns, &seen, scores);
                }
                Others::InPlace([keys, _]) => {
                    few::products(simd, &self.q, place, keys, [key_head, block], &seen, scores);
                }
            }
            let softmax = Softmax {
                scoring,
                scores: &mut *scores,
                spans: &seen,
                tops: &mut tops,
                totals: &mut totals,
                sums: sums.as_mut_slice(),
                dim,
            };
            vectorize(simd, softmax);
            let place = [sequence, key_head, block];
            let sums = sums.as_mut_slice();
            match self.others {
                Others::Packed([_, values]) => {
                    values.add_weighted(simd, place, scores, &seen, sums);
                }
                Others::InPlace([_, values]) => {
                    few::add_weighted(simd, values, place, scores, &seen, sums);
                }
            }
        }
        let sums = sums.as_slice();
        // SAFETY: a task has its queries of its head to itself.
        let lse = unsafe {
            let at = (sequence * shape.heads + head) * shape.queries + first;
            self.lse.slice_mut(at, rows)
        };
        for i in 0..rows {
            // SAFETY: as above.
            let o = unsafe {
                self.o
                    .slice_mut(self.q.start(sequence, first + i, head), dim)
            };
            if self.spans[i].is_empty() {
                o.fill(E::ZERO);
                lse[i] = E::Acc::from_f64(f64::NEG_INFINITY);
                continue;
            }
            for (o, &sum) in o.iter_mut().zip(&sums[i * dim..]) {
                *o = E::narrow(sum / totals[i]);
            }
            let logarithm = totals[i].to_f64().ln();
            lse[i] = E::Acc::from_f64(tops[i].to_f64() + logarithm);
        }
    }
}
