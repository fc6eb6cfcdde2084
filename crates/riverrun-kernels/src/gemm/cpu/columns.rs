//! The left side of a sum of outer products, `sum += Σ_r left[r] ⊗ right[r]`, laid out to be read in order.

use std::ops::Range;

use pulp::Simd;

use super::packed::PackedMatrix;
use super::tile::{ByColumns, HEIGHT, Product};
use crate::buffer::Buffer;
use crate::simd::real::Real;
use crate::threads::Shared;

/// A matrix `[rows, width]` in panels of [`HEIGHT`] columns, in each of which the rows follow one another.
pub struct Columns<R> {
    data: Buffer<R>,
    shape: Shape,
}

/// The sizes of a [`Columns`].
#[derive(Clone, Copy)]
pub struct Shape {
    width: usize,
    /// From panel to panel.
    stride: usize,
}

impl<R: Real> Columns<R> {
    /// Room for up to `rows` rows.
    pub fn with_capacity(rows: usize, width: usize) -> Self {
        let stride = (rows + 1) * HEIGHT;
        Self {
            data: Buffer::zeroed(width.div_ceil(HEIGHT) * stride),
            shape: Shape { width, stride },
        }
    }

    /// The sizes and the data, for [`Shape::put_rows`].
    pub fn parts(&mut self) -> (Shape, Shared<'_, R>) {
        (self.shape, Shared::new(self.data.as_mut_slice()))
    }

    /// `out[c] = Σ_r self[r, c] · right[r]` for the columns of some panels, or `out[c] +=` with `add`. `out` starts with
    /// the first of these columns and has `width` numbers for each.
    pub fn multiply<S: Simd>(
        &self,
        simd: S,
        panels: Range<usize>,
        right: &PackedMatrix<R>,
        out: &mut [R],
        width: usize,
        add: bool,
    ) {
        let Shape {
            width: columns,
            stride,
        } = self.shape;
        // Full panels, then a narrower last one.
        let full = panels.end.min(columns / HEIGHT).max(panels.start);
        let (first, last) = out.split_at_mut((full - panels.start) * HEIGHT * width);
        for (panels, rows, out) in [
            (panels.start..full, HEIGHT, first),
            (full..panels.end, columns % HEIGHT, last),
        ] {
            if panels.is_empty() {
                continue;
            }
            simd.vectorize(Product {
                a: &self.data.as_slice()[panels.start * stride..],
                left: ByColumns::<HEIGHT>,
                a_group: stride,
                rows,
                groups: panels.len(),
                packed: right,
                init: None,
                out,
                out_stride: width,
                out_group: HEIGHT * width,
                columns: width,
                add,
                backwards: false,
            });
        }
    }
}

impl Shape {
    /// Writes some rows, each times its factor if it has one.
    ///
    /// # Safety
    /// `to` is the data of the matrix of this shape, and nothing else uses these rows at the same time.
    #[inline(always)]
    pub unsafe fn put_rows<'s, R: Real>(
        self,
        to: Shared<R>,
        rows: Range<usize>,
        source: impl Fn(usize) -> &'s [R],
        factor: impl Fn(usize) -> Option<&'s [R]>,
    ) {
        // Panels are far apart: some rows of one are written before the next one's.
        for first in rows.clone().step_by(HEIGHT) {
            let count = HEIGHT.min(rows.end - first);
            let mut from: [&[R]; HEIGHT] = [&[]; HEIGHT];
            let mut factors: [Option<&[R]>; HEIGHT] = [None; HEIGHT];
            for row in 0..count {
                from[row] = &source(first + row)[..self.width];
                factors[row] = factor(first + row);
            }
            for column in (0..self.width).step_by(HEIGHT) {
                let n = HEIGHT.min(self.width - column);
                let panel = column / HEIGHT * self.stride + first * HEIGHT;
                // SAFETY: the caller's promise.
                let to = unsafe { to.slice_mut(panel, count * HEIGHT) };
                for (row, to) in to.as_chunks_mut::<HEIGHT>().0.iter_mut().enumerate() {
                    let from = &from[row][column..];
                    if let Some(factor) = factors[row] {
                        let from = from[..n].iter().zip(&factor[column..]);
                        for (to, (&x, &factor)) in to.iter_mut().zip(from) {
                            *to = x * factor;
                        }
                    } else if let Some(from) = from.first_chunk() {
                        // With a constant length this is two instructions.
                        *to = *from;
                    } else {
                        to[..n].copy_from_slice(from);
                    }
                }
            }
        }
    }
}
