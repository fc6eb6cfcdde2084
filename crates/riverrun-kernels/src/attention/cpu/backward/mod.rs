//! Backward: one pass over each head, or where there are too few heads for the threads, one over the queries for their
//! gradients and one over the keys for those of keys and values. Both add the same numbers in the same order.

mod apart;
mod tile;
mod together;

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::blocks::{View, Wide};
use super::scores::numbers;
use crate::attention::Problem;
use crate::buffer::Buffer;
use crate::error::expect_length;
use crate::simd::level::Level;
use crate::simd::real::Real;
use crate::simd::vector::Vector;
use crate::threads::pieces::{InPieces, Pieces};
use crate::threads::{Shared, parallel_map};
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
pub fn backward<E: super::Kernels<E>>(
    problem: &Problem,
    args: Backward<'_, E>,
) -> Result<(), Error> {
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

pub(in crate::attention::cpu) fn attend_back<E: Element>(problem: &Problem, args: Backward<'_, E>) {
    Level::available()[0].with_token(Run { problem, args });
}

/// The spans of every sequence.
pub(in crate::attention::cpu) fn all_spans(
    problem: &Problem,
    reset: Option<&[bool]>,
) -> Vec<Vec<Range<usize>>> {
    let shape = problem.shape;
    let marks = |b: usize| reset.map(|reset| &reset[b * shape.keys..][..shape.keys]);
    let spans = |b: usize| problem.spans(marks(b));
    parallel_map(shape.batch, spans)
}

/// A problem whose lengths have been checked.
struct Run<'a, 'p, E: Element> {
    problem: &'p Problem,
    args: Backward<'a, E>,
}

/// What the gradients are computed from.
#[derive(Clone, Copy)]
struct Given<'a, R> {
    problem: &'a Problem,
    q: View<'a, R>,
    k: View<'a, R>,
    v: View<'a, R>,
    d_o: View<'a, R>,
    lse: &'a [R],
    delta: &'a [R],
    /// The keys that each query of each sequence sees.
    spans: &'a [Vec<Range<usize>>],
}

/// The gradients.
#[derive(Clone, Copy)]
struct Gradients<'a, E> {
    d_q: Shared<'a, E>,
    d_k: Shared<'a, E>,
    d_v: Shared<'a, E>,
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
        let delta = delta(simd, problem, args.o, d_o);
        let given = Given {
            problem,
            q,
            k,
            v,
            d_o,
            lse: args.lse,
            delta: delta.as_slice(),
            spans: &all_spans(problem, args.reset),
        };
        let gradients = Gradients {
            d_q: Shared::new(args.d_q),
            d_k: Shared::new(args.d_k),
            d_v: Shared::new(args.d_v),
        };
        if !(together::pays(problem) && together::run::<S, E>(simd, given, gradients)) {
            apart::run::<S, E>(simd, given, gradients);
        }
    }
}

/// `δ`, `[B, H, T]`.
fn delta<S: Simd, E: Element>(
    simd: S,
    problem: &Problem,
    o: &[E],
    d_o: View<'_, E::Acc>,
) -> Buffer<E::Acc> {
    let shape = problem.shape;
    let mut delta = Buffer::scratch(shape.rows());
    let heads = delta.as_mut_slice().par_chunks_mut(shape.queries.max(1));
    heads.enumerate().for_each(|(lane, delta)| {
        let place = [lane / shape.heads, lane % shape.heads];
        simd.vectorize(Deltas {
            o,
            d_o,
            place,
            delta,
        });
    });
    delta
}

/// `δ` of a head. The sums are those of a tile's products, term by term in the order of the channels: where a query has all its
/// weight on one key, `o` is that key's value, and `dp - δ` is 0 exactly.
struct Deltas<'a, E: Element> {
    o: &'a [E],
    d_o: View<'a, E::Acc>,
    /// Sequence and head.
    place: [usize; 2],
    delta: &'a mut [E::Acc],
}

impl<E: Element> WithSimd for Deltas<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let [sequence, head] = self.place;
        for (i, delta) in self.delta.iter_mut().enumerate() {
            let above = self.d_o.row(sequence, i, head);
            let o = &self.o[self.d_o.start(sequence, i, head)..][..above.len()];
            let mut sum = Vector::splat(simd, E::Acc::ZERO);
            for (o, &d) in o.iter().zip(above) {
                sum = Vector::splat(simd, o.widen()).mul_add(Vector::splat(simd, d), sum);
            }
            *delta = numbers(sum)[0];
        }
    }
}

/// Rounds to storage.
fn write<E: Element>(to: &mut [E], from: &[E::Acc]) {
    for (to, &from) in to.iter_mut().zip(from) {
        *to = E::narrow(from);
    }
}
