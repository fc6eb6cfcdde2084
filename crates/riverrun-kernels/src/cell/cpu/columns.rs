//! The left side of a sum of outer products, `into += Σ_r left[r] ⊗ right[r]`, laid out to be read in order.

use std::ops::Range;

use super::buffer::Buffer;
use super::lanes::{Lanes, Number};
use super::packing::Packed;
use super::product::{ByColumns, HEIGHT, Product};

/// A matrix `[rows, width]` in panels of [`HEIGHT`] columns, in each of which a row follows the other.
pub(super) struct Columns<R> {
    data: Buffer<R>,
    width: usize,
    /// From panel to panel.
    stride: usize,
}

impl<R: Number> Columns<R> {
    /// Room for up to `rows` rows.
    pub(super) fn room(rows: usize, width: usize) -> Self {
        let stride = rows * HEIGHT;
        Self {
            data: Buffer::zeroed(width.div_ceil(HEIGHT) * stride),
            width,
            stride,
        }
    }

    /// Where [`Self::put_rows`] writes.
    pub(super) fn as_mut_ptr(&mut self) -> *mut R {
        self.data.as_mut_ptr()
    }

    /// Writes some rows, each times its factor if it has one.
    ///
    /// # Safety
    /// `to` is [`Self::as_mut_ptr`], the room has these rows, and nobody else uses them meanwhile.
    #[inline(always)]
    pub(super) unsafe fn put_rows<'s>(
        &self,
        to: *mut R,
        rows: Range<usize>,
        source: impl Fn(usize) -> &'s [R],
        factor: impl Fn(usize) -> Option<&'s [R]>,
    ) {
        // Panels are far apart: some rows of one are written before the next is turned to.
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
                for row in 0..count {
                    let from = &from[row][column..][..n];
                    // SAFETY: a row of a panel of the room.
                    unsafe {
                        let to = to.add(column / HEIGHT * self.stride + (first + row) * HEIGHT);
                        if let Some(factor) = factors[row] {
                            for (j, (&x, &factor)) in from.iter().zip(&factor[column..]).enumerate()
                            {
                                *to.add(j) = x * factor;
                            }
                        } else if n == HEIGHT {
                            // A length that is known makes this two instructions.
                            to.copy_from_nonoverlapping(from.as_ptr(), HEIGHT);
                        } else {
                            to.copy_from_nonoverlapping(from.as_ptr(), n);
                        }
                    }
                }
            }
        }
    }

    /// `into[c] += Σ_r self[r, c] · right[r]` for the columns of some panels, or `into[c] =`. `into` is at column 0.
    ///
    /// # Safety
    /// `into` has `width` numbers for each of the columns, which nobody else uses meanwhile; `right` has as many rows as
    /// were written here; `L` is a level of this machine.
    pub(super) unsafe fn multiply<L: Lanes<Real = R>>(
        &self,
        panels: Range<usize>,
        right: &Packed<R>,
        into: *mut R,
        width: usize,
        add: bool,
    ) {
        // Full panels, then a narrower last one.
        let full = panels.end.min(self.width / HEIGHT).max(panels.start);
        for (panels, rows) in [
            (panels.start..full, HEIGHT),
            (full..panels.end, self.width % HEIGHT),
        ] {
            // SAFETY: the caller's promises.
            unsafe {
                L::run(Product {
                    a: self.data.as_ptr().add(panels.start * self.stride),
                    left: ByColumns,
                    a_group: self.stride,
                    rows,
                    groups: panels.len(),
                    packed: right,
                    out: into.add(panels.start * HEIGHT * width),
                    out_stride: width,
                    out_group: HEIGHT * width,
                    columns: width,
                    add,
                    backwards: false,
                });
            }
        }
    }
}
