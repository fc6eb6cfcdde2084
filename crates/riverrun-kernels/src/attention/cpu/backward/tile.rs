//! A block of probabilities and of the gradients of the products.

use std::ops::Range;

use pulp::Simd;

use crate::attention::cpu::COLUMNS;
use crate::attention::cpu::blocks::View;
use crate::attention::cpu::scores::{Along, Differentiate, Scoring, vectorize};
use crate::buffer::Buffer;
use crate::gemm::cpu::packed::PackedMatrix;
use crate::simd::real::Real;

/// A block, with as many elements again as a row after its last row: see [`ByColumns`](crate::gemm::cpu::tile::ByColumns).
pub(super) struct Tile<R> {
    /// `[rows, COLUMNS]`: `p`.
    pub p: Buffer<R>,
    /// `[rows, COLUMNS]`: the gradients of the products of queries and keys.
    pub d: Buffer<R>,
}

/// What a block is computed from.
pub(super) struct Sides<'a, R> {
    /// One side: `q` and `d_o`, or `k` and `v`.
    pub rows: [View<'a, R>; 2],
    /// Sequence, first row, head of that side.
    pub place: [usize; 3],
    /// A block of the other side.
    pub columns: [&'a PackedMatrix<R>; 2],
    /// The rows of that block.
    pub count: usize,
    /// One number a query.
    pub lse: Along<'a, R>,
    /// One number a query.
    pub delta: Along<'a, R>,
    /// The columns that each row sees, or is seen by.
    pub seen: &'a [Range<usize>],
}

impl<R: Real> Tile<R> {
    pub fn new(rows: usize) -> Self {
        let numbers = (rows + 1) * COLUMNS;
        Self {
            p: Buffer::zeroed(numbers),
            d: Buffer::zeroed(numbers),
        }
    }

    /// Computes a block.
    pub fn fill<S: Simd>(&mut self, simd: S, scoring: Scoring<R>, sides: &Sides<'_, R>) {
        let (p, d) = (self.p.as_mut_slice(), self.d.as_mut_slice());
        for n in 0..2 {
            let out = if n == 0 { &mut *p } else { &mut *d };
            let (place, count, seen) = (sides.place, sides.count, sides.seen);
            sides.rows[n].times(simd, place, sides.columns[n], count, seen, out);
        }
        let differentiate = Differentiate {
            scoring,
            products: p,
            d_p: d,
            lse: sides.lse,
            delta: sides.delta,
            spans: sides.seen,
        };
        vectorize(simd, differentiate);
    }
}
