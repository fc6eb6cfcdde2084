//! Keys and values where they lie, for a few queries.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::COLUMNS;
use super::blocks::{Seen, View};
use super::scores::vectorize;
use crate::simd::real::Real;
use crate::simd::vector::Vector;

/// Up to so many queries.
pub(super) const FEW: usize = 4;

/// Keys whose products with a query are summed side by side.
const SIDE: usize = 4;

/// `out [rows, COLUMNS] =` the rows of a head from `first` on, times the rows of a block that each of them sees.
pub(super) fn products<S: Simd, R: Real>(
    simd: S,
    q: &View<'_, R>,
    [sequence, first, head]: [usize; 3],
    keys: &View<'_, R>,
    [key_head, block]: [usize; 2],
    seen: &[Range<usize>],
    out: &mut [R],
) {
    for (i, span) in seen.iter().enumerate() {
        let products = Products {
            query: q.row(sequence, first + i, head),
            keys,
            place: [sequence, block * COLUMNS, key_head],
            span: span.clone(),
            out: &mut out[i * COLUMNS..][..COLUMNS],
        };
        vectorize(simd, products);
    }
}

/// `out [rows, D] += weights [rows, COLUMNS] ·` the rows of a block that each of them sees.
pub(super) fn add_weighted<S: Simd, R: Real>(
    simd: S,
    values: &View<'_, R>,
    [sequence, head, block]: [usize; 3],
    weights: &[R],
    spans: &[Range<usize>],
    out: &mut [R],
) {
    let first = block * COLUMNS;
    let end = values.length.min(first + COLUMNS);
    let rows = (first..end).map(|row| values.row(sequence, row, head));
    let seen = Seen {
        rows: &rows.collect::<Vec<_>>(),
        weights,
        spans,
        out,
    };
    vectorize(simd, seen);
}

/// One query times rows of a block.
struct Products<'a, R> {
    query: &'a [R],
    keys: &'a View<'a, R>,
    /// Sequence, the block's first row, head.
    place: [usize; 3],
    span: Range<usize>,
    out: &'a mut [R],
}

impl<R: Real> WithSimd for Products<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let [sequence, first, head] = self.place;
        let (query, query_rest) = R::split::<S>(self.query);
        let mut column = self.span.start;
        while column < self.span.end {
            // At the end some rows are read again, and their products not used.
            let rows: [&[R]; SIDE] = std::array::from_fn(|n| {
                let row = first + (column + n).min(self.span.end - 1);
                self.keys.row(sequence, row, head)
            });
            let mut sums = [Vector::splat(simd, R::ZERO); SIDE];
            for (n, &part) in query.iter().enumerate() {
                let part = Vector::<S, R>::new(simd, part);
                for (sum, row) in sums.iter_mut().zip(rows) {
                    let key = Vector::new(simd, R::split::<S>(row).0[n]);
                    *sum = part.mul_add(key, *sum);
                }
            }
            if !query_rest.is_empty() {
                let part = Vector::load_rest(simd, query_rest);
                for (sum, row) in sums.iter_mut().zip(rows) {
                    let key = Vector::load_rest(simd, R::split::<S>(row).1);
                    *sum = part.mul_add(key, *sum);
                }
            }
            for (n, sum) in sums.into_iter().enumerate() {
                if column + n < self.span.end {
                    self.out[column + n] = sum.sum();
                }
            }
            column += SIDE;
        }
    }
}
