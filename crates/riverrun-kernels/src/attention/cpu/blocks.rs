//! A `[B, L, heads, D]` tensor as blocks of [`COLUMNS`] rows of a head, packed for products.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::COLUMNS;
use crate::Element;
use crate::buffer::Buffer;
use crate::gemm::cpu::packed::{Layout, PackedMatrix};
use crate::gemm::cpu::tile::{ByRows, HEIGHT, Left, Product};
use crate::simd::real::Real;
use crate::simd::vector::{Vector, lanes};
use crate::threads::parallel_map;
use crate::threads::pieces::{InPieces, Pieces};

/// A tensor in the arithmetic type.
pub(super) enum Wide<'a, R> {
    /// It was stored in that type.
    Same(&'a [R]),
    /// It was widened.
    Held(Buffer<R>),
}

impl<'a, R: Real> Wide<'a, R> {
    pub fn new<E: Element<Acc = R>>(x: &'a [E]) -> Self {
        if size_of::<E>() == size_of::<R>() {
            return Wide::Same(bytemuck::cast_slice(x));
        }
        const PIECE: usize = 1 << 14;
        let mut held = Buffer::scratch(x.len());
        let pieces = held.as_mut_slice().par_chunks_mut(PIECE);
        pieces.zip(x.par_chunks(PIECE)).for_each(|(to, from)| {
            to.iter_mut()
                .zip(from)
                .for_each(|(to, from)| *to = from.widen());
        });
        Wide::Held(held)
    }

    pub fn get(&self) -> &[R] {
        match self {
            Wide::Same(x) => x,
            Wide::Held(buffer) => buffer.as_slice(),
        }
    }
}

/// The tensor's numbers and sizes.
#[derive(Clone, Copy)]
pub(super) struct View<'a, R> {
    pub data: &'a [R],
    pub batch: usize,
    pub length: usize,
    pub heads: usize,
    pub dim: usize,
}

impl<'a, R: Real> View<'a, R> {
    /// From row to row of a head.
    pub fn stride(&self) -> usize {
        self.heads * self.dim
    }

    /// The first element of a row.
    pub fn start(&self, sequence: usize, row: usize, head: usize) -> usize {
        ((sequence * self.length + row) * self.heads + head) * self.dim
    }

    /// A row.
    pub fn row(&self, sequence: usize, row: usize, head: usize) -> &'a [R] {
        &self.data[self.start(sequence, row, head)..][..self.dim]
    }

    /// `out [rows, COLUMNS] =` as many rows from `first` on as `seen` has, times `packed`. Columns beyond those that a row sees
    /// may be left as they are.
    pub fn times<S: Simd>(
        &self,
        simd: S,
        [sequence, first, head]: [usize; 3],
        packed: &PackedMatrix<R>,
        columns: usize,
        seen: &[Range<usize>],
        out: &mut [R],
    ) {
        for (n, seen) in seen.chunks(STRIP).enumerate() {
            let end = seen.iter().map(|span| span.end).max().unwrap_or(0);
            let product = Product {
                a: &self.data[self.start(sequence, first + n * STRIP, head)..],
                left: ByRows(self.stride()),
                a_group: 0,
                rows: seen.len(),
                groups: 1,
                packed,
                init: None,
                out: &mut out[n * STRIP * COLUMNS..],
                out_stride: COLUMNS,
                out_group: 0,
                columns: columns.min(end.next_multiple_of(PANEL)),
                add: false,
                backwards: false,
            };
            multiply(simd, product);
        }
    }
}

/// Rows whose products end at the same column.
const STRIP: usize = 32;

/// Whole panels for registers of 4 to 16 numbers.
const PANEL: usize = COLUMNS / 2;

/// A product by the vector instructions of `S`. One function for all callers: the register tiles are much code.
#[inline(never)]
fn multiply<S: Simd, R: Real, A: Left>(simd: S, product: Product<'_, R, A>) {
    simd.vectorize(product);
}

/// All blocks of a tensor.
pub(super) struct Blocks<'a, R> {
    view: View<'a, R>,
    /// `[D, rows]`: for products along the channels.
    across: Vec<PackedMatrix<R>>,
    /// `[rows, D]`, and whether all its numbers are finite: for sums over the rows.
    down: Vec<(PackedMatrix<R>, bool)>,
}

impl<'a, R: Real> Blocks<'a, R> {
    /// Packs the tensor for one or both kinds of product.
    pub fn new<S: Simd>(view: View<'a, R>, across: bool, down: bool) -> Self {
        let blocks = view.length.div_ceil(COLUMNS);
        let all = view.batch * view.heads * blocks;
        let place = |index: usize| {
            let (lane, first) = (index / blocks, index % blocks * COLUMNS);
            let rows = COLUMNS.min(view.length - first);
            ([lane / view.heads, first, lane % view.heads], rows)
        };
        let pack_across = |index: usize| {
            let ([sequence, first, head], rows) = place(index);
            let start = |c: usize| (c < rows).then(|| view.start(sequence, first + c, head));
            let layout = Layout::Columns(&start);
            PackedMatrix::new::<S>(view.data, layout, view.dim, rows, HEIGHT, false)
        };
        let pack_down = |index: usize| {
            let ([sequence, first, head], rows) = place(index);
            let layout = Layout::Rows {
                start: view.start(sequence, first, head),
                stride: view.stride(),
                len: view.dim,
            };
            let packed = PackedMatrix::new::<S>(view.data, layout, rows, view.dim, HEIGHT, false);
            let finite = (first..first + rows).all(|row| {
                let row = view.row(sequence, row, head);
                row.iter().fold(R::ZERO, |sum, &x| sum + x * R::ZERO) == R::ZERO
            });
            (packed, finite)
        };
        let count = |wanted: bool| if wanted { all } else { 0 };
        Self {
            view,
            across: parallel_map(count(across), pack_across),
            down: parallel_map(count(down), pack_down),
        }
    }

    fn index(&self, sequence: usize, head: usize, block: usize) -> usize {
        (sequence * self.view.heads + head) * self.view.length.div_ceil(COLUMNS) + block
    }

    /// A block as the right side of a product along the channels.
    pub fn across(&self, sequence: usize, head: usize, block: usize) -> &PackedMatrix<R> {
        &self.across[self.index(sequence, head, block)]
    }

    /// `out [rows, D] += weights [rows, COLUMNS] ·` block. `spans` are the columns that each row sees; the weights outside of
    /// them are 0.
    pub fn add_weighted<S: Simd>(
        &self,
        simd: S,
        [sequence, head, block]: [usize; 3],
        weights: &[R],
        spans: &[Range<usize>],
        out: &mut [R],
    ) {
        let (packed, finite) = &self.down[self.index(sequence, head, block)];
        let columns = packed.depth;
        // A weight of 0 does not hide what is not a number.
        if !finite && spans.iter().any(|span| span.len() < columns) {
            let row = |column| self.view.row(sequence, block * COLUMNS + column, head);
            let rows: Vec<&[R]> = (0..columns).map(row).collect();
            let seen = Seen {
                rows: &rows,
                weights,
                spans,
                out,
            };
            simd.vectorize(seen);
            return;
        }
        self.add_product(
            simd,
            [sequence, head, block],
            weights,
            ByRows(COLUMNS),
            spans.len(),
            out,
        );
    }

    /// `out [rows, D] += weights [rows, COLUMNS] ·` block, all of whose numbers are finite where weights are 0.
    pub fn add_product<S: Simd, A: Left>(
        &self,
        simd: S,
        [sequence, head, block]: [usize; 3],
        weights: &[R],
        left: A,
        rows: usize,
        out: &mut [R],
    ) {
        let dim = self.view.dim;
        let product = Product {
            a: weights,
            left,
            a_group: 0,
            rows,
            groups: 1,
            packed: &self.down[self.index(sequence, head, block)].0,
            init: None,
            out,
            out_stride: dim,
            out_group: 0,
            columns: dim,
            add: true,
            backwards: false,
        };
        multiply(simd, product);
    }

    /// Whether all numbers of a tensor that is packed for sums over its rows are finite.
    pub fn finite(&self) -> bool {
        self.down.iter().all(|(_, finite)| *finite)
    }
}

/// Weighted sums over nothing but what is seen, with the bits of a [`Product`] over all where the rest has weights of 0.
pub(super) struct Seen<'a, R> {
    /// The block.
    pub rows: &'a [&'a [R]],
    /// `[rows, COLUMNS]`.
    pub weights: &'a [R],
    /// The columns that each row sees.
    pub spans: &'a [Range<usize>],
    /// `[rows, D]`.
    pub out: &'a mut [R],
}

impl<R: Real> WithSimd for Seen<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (dim, width) = (self.rows[0].len(), lanes::<S, R>());
        let rows = self.weights.chunks(COLUMNS).zip(self.out.chunks_mut(dim));
        for (span, (weights, out)) in self.spans.iter().zip(rows) {
            for (part, out) in out.chunks_mut(width).enumerate() {
                let at = part * width..part * width + out.len();
                let mut sum = Vector::splat(simd, R::ZERO);
                for column in span.clone() {
                    let x = Vector::load_rest(simd, &self.rows[column][at.clone()]);
                    sum = Vector::splat(simd, weights[column]).mul_add(x, sum);
                }
                let sum = Vector::load_rest(simd, out) + sum;
                R::store_rest(simd, out, sum.lanes);
            }
        }
    }
}

/// The blocks that any of the spans meets.
pub(super) fn met(spans: &[Range<usize>]) -> Range<usize> {
    let seen = spans.iter().filter(|span| !span.is_empty());
    let first = seen.clone().map(|span| span.start).min();
    let end = seen.map(|span| span.end).max();
    match (first, end) {
        (Some(first), Some(end)) => first / COLUMNS..end.div_ceil(COLUMNS),
        _ => 0..0,
    }
}

/// The part of a span that lies in a block, counted from the block's first column.
pub(super) fn within(span: &Range<usize>, block: usize) -> Range<usize> {
    let (first, end) = (block * COLUMNS, (block + 1) * COLUMNS);
    let start = span.start.clamp(first, end) - first;
    start..(span.end.clamp(first, end) - first).max(start)
}
