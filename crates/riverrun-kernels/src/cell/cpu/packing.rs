//! The right side of a product, packed once for many.
//!
//! Columns are packed in panels of a few vectors, each panel with its column index fastest: the product reads the
//! weights in the order in which they lie.

use rayon::prelude::*;

use super::buffer::Buffer;
use super::lanes::{Lanes, Number};

/// Some columns of the weights: `vectors · WIDTH` of them, the first of which is `column`.
pub(super) struct Panel {
    pub offset: usize,
    pub column: usize,
    pub vectors: usize,
}

/// A matrix `[depth, columns]` in panels.
pub(super) struct Packed<R> {
    pub data: Buffer<R>,
    pub depth: usize,
    pub panels: Vec<Panel>,
}

/// Where the element `(k, column)` of a matrix lies in the slice that it is packed from.
pub(super) enum Layout<'a> {
    /// At `start(column) + k`; a column without a start is zero.
    Columns(&'a (dyn Fn(usize) -> Option<usize> + Sync)),
    /// At `start + k · stride + column` for columns below `len`; the others are zero.
    Rows {
        /// Of the element (0, 0).
        start: usize,
        /// From row to row.
        stride: usize,
        /// Columns that there are.
        len: usize,
    },
}

/// Vectors in a panel for a product of so many rows, widest first, down to one for what is left.
///
/// Few rows need many vectors, or the chain of additions and not the memory sets the pace; many rows make the best use of
/// each vector loaded with a tile of 8 × 3, which fills 32 registers (4 × 3 fills 16).
fn panel_widths<L: Lanes>(rows: usize) -> &'static [usize] {
    match (L::REGISTERS >= 32, rows) {
        (_, 0..=1) | (true, 2) => &[8, 4, 2, 1],
        (false, 2) | (true, 3..=6) => &[4, 2, 1],
        _ => &[3, 2, 1],
    }
}

/// The panels of a matrix `[depth, columns]` for products of `rows` rows.
fn panels<L: Lanes>(depth: usize, columns: usize, rows: usize) -> Vec<Panel> {
    let mut panels = Vec::new();
    let (mut column, mut left) = (0, columns / L::WIDTH);
    for &vectors in panel_widths::<L>(rows) {
        while left >= vectors {
            panels.push(Panel {
                offset: column * depth,
                column,
                vectors,
            });
            column += vectors * L::WIDTH;
            left -= vectors;
        }
    }
    panels
}

impl<R: Number> Packed<R> {
    /// Room for matrices of up to `depth` rows, for products of `rows` rows; see [`Self::put_row`].
    pub(super) fn room<L: Lanes<Real = R>>(depth: usize, columns: usize, rows: usize) -> Self {
        Self {
            data: Buffer::zeroed(depth * columns),
            depth,
            panels: panels::<L>(depth, columns, rows),
        }
    }

    /// Says how many rows of the room there are now.
    pub(super) fn set_depth(&mut self, depth: usize) {
        self.depth = depth;
    }

    /// Where [`Self::put_row`] writes.
    pub(super) fn as_mut_ptr(&mut self) -> *mut R {
        self.data.as_mut_ptr()
    }

    /// Writes row `k`; zeros for an absent one. Columns beyond it keep what they have.
    ///
    /// # Safety
    /// `to` is [`Self::as_mut_ptr`], the room has the row, and nobody else uses it meanwhile.
    pub(super) unsafe fn put_row<L: Lanes<Real = R>>(
        &self,
        to: *mut R,
        k: usize,
        columns: usize,
        row: Option<&[R]>,
    ) {
        for panel in &self.panels {
            let width = panel.vectors * L::WIDTH;
            let n = columns.saturating_sub(panel.column).min(width);
            // SAFETY: the caller's promises; panels lie inside the room.
            unsafe {
                let to = to.add(panel.offset + k * width);
                match row {
                    Some(row) => to.copy_from_nonoverlapping(row[panel.column..][..n].as_ptr(), n),
                    None => to.write_bytes(0, n),
                }
            }
        }
    }

    /// Packs `columns` columns, a multiple of the vector's width, for products of `rows` rows.
    pub(super) fn new<L: Lanes<Real = R>>(
        source: &[R],
        layout: Layout<'_>,
        depth: usize,
        columns: usize,
        rows: usize,
        parallel: bool,
    ) -> Self {
        let panels = panels::<L>(depth, columns, rows);
        let mut data = Buffer::zeroed(depth * columns);
        let mut rest = data.as_mut_slice();
        let mut pieces = Vec::with_capacity(panels.len());
        for panel in &panels {
            let (piece, after) = rest.split_at_mut(depth * panel.vectors * L::WIDTH);
            pieces.push((panel, piece));
            rest = after;
        }
        let fill = |(panel, piece): (&Panel, &mut [R])| {
            let width = panel.vectors * L::WIDTH;
            match layout {
                Layout::Columns(start) => gather(source, piece, width, |c| start(panel.column + c)),
                Layout::Rows { start, stride, len } => {
                    let n = len.saturating_sub(panel.column).min(width);
                    for (k, to) in piece.chunks_exact_mut(width).enumerate() {
                        to[..n].copy_from_slice(&source[start + k * stride + panel.column..][..n]);
                    }
                }
            }
        };
        if parallel {
            pieces.into_par_iter().for_each(fill);
        } else {
            pieces.into_iter().for_each(fill);
        }
        Self {
            data,
            depth,
            panels,
        }
    }
}

/// Transposes columns that lie one after another into a panel, in blocks small enough for the nearest cache.
fn gather<R: Number>(
    source: &[R],
    panel: &mut [R],
    width: usize,
    start: impl Fn(usize) -> Option<usize>,
) {
    const BLOCK: usize = 16;
    let depth = panel.len() / width;
    let columns: Vec<(usize, &[R])> = (0..width)
        .filter_map(|c| Some((c, &source[start(c)?..][..depth])))
        .collect();
    for (block, to) in panel.chunks_mut(BLOCK * width).enumerate() {
        let first = block * BLOCK;
        for &(c, column) in &columns {
            for (k, &x) in column[first..depth.min(first + BLOCK)].iter().enumerate() {
                to[k * width + c] = x;
            }
        }
    }
}
