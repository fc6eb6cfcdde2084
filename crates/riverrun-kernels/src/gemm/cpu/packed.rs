//! The right side of a product, packed once for many.
//!
//! Columns are packed in panels of a few vectors, each panel with its column index fastest: the product reads the matrix in the
//! order of its memory.

use pulp::Simd;

use crate::buffer::Buffer;
use crate::simd::real::Real;
use crate::simd::vector::lanes;
use crate::threads::{Shared, parallel_for_each};

/// Some columns of the matrix: `vectors` registers of them, the first of which is `column`.
pub struct Panel {
    pub offset: usize,
    pub column: usize,
    pub vectors: usize,
}

/// A matrix `[depth, columns]` in panels.
pub struct PackedMatrix<R> {
    pub data: Buffer<R>,
    pub depth: usize,
    pub panels: Vec<Panel>,
}

/// The index of element `(k, column)` in the slice that a matrix is packed from.
pub enum Layout<'a> {
    /// At `start(column) + k`; a column without a start is zero.
    Columns(&'a (dyn Fn(usize) -> Option<usize> + Sync)),
    /// At `start + k · stride + column` for columns below `len`; the others are zero.
    Rows {
        /// The index of element (0, 0).
        start: usize,
        /// From row to row.
        stride: usize,
        /// The number of columns.
        len: usize,
    },
}

/// Vectors in a panel for a product of `rows` rows, widest first, down to one for the rest.
///
/// Few rows need many vectors, or else the latency of additions, not memory, is the limit; many rows make the best use of each
/// vector loaded with a tile of 8 × 3 in 32 registers, or 6 × 2 in 16.
fn panel_widths<S: Simd>(rows: usize) -> &'static [usize] {
    match (S::REGISTER_COUNT >= 32, rows) {
        (_, 0..=1) | (true, 2) => &[8, 4, 2, 1],
        (false, 2) | (true, 3..=6) => &[4, 2, 1],
        (true, _) => &[3, 2, 1],
        (false, _) => &[2, 1],
    }
}

/// The panels of a matrix `[depth, columns]` for products of `rows` rows.
fn panels<S: Simd, R: Real>(depth: usize, columns: usize, rows: usize) -> Vec<Panel> {
    let width = lanes::<S, R>();
    let mut panels = Vec::new();
    let (mut column, mut left) = (0, columns.div_ceil(width));
    for &vectors in panel_widths::<S>(rows) {
        while left >= vectors {
            panels.push(Panel {
                offset: column * depth,
                column,
                vectors,
            });
            column += vectors * width;
            left -= vectors;
        }
    }
    panels
}

/// Numbers in a matrix whose columns fill whole vectors.
fn size<S: Simd, R: Real>(depth: usize, columns: usize) -> usize {
    let columns = columns.next_multiple_of(lanes::<S, R>());
    depth.checked_mul(columns).expect("a matrix that fits")
}

impl<R: Real> PackedMatrix<R> {
    /// Room for matrices of up to `depth` rows, for products of `rows` rows; see [`put_row`].
    pub fn with_capacity<S: Simd>(depth: usize, columns: usize, rows: usize) -> Self {
        Self {
            data: Buffer::zeroed(size::<S, R>(depth, columns)),
            depth,
            panels: panels::<S, R>(depth, columns, rows),
        }
    }

    /// Sets the number of rows, up to the capacity, and returns the panels and the data, for [`put_row`].
    pub fn parts(&mut self, depth: usize) -> (&[Panel], Shared<'_, R>) {
        self.depth = depth;
        (&self.panels, Shared::new(self.data.as_mut_slice()))
    }

    /// Packs `columns` columns, rounded up to whole vectors, for products of `rows` rows.
    pub fn new<S: Simd>(
        source: &[R],
        layout: Layout<'_>,
        depth: usize,
        columns: usize,
        rows: usize,
        parallel: bool,
    ) -> Self {
        let lanes = lanes::<S, R>();
        let panels = panels::<S, R>(depth, columns, rows);
        let mut data = Buffer::scratch(size::<S, R>(depth, columns));
        let mut rest = data.as_mut_slice();
        let mut pieces = Vec::with_capacity(panels.len());
        for panel in &panels {
            let (piece, after) = rest.split_at_mut(depth * panel.vectors * lanes);
            pieces.push((panel, piece));
            rest = after;
        }
        let fill = |(panel, piece): &mut (&Panel, &mut [R])| {
            let width = panel.vectors * lanes;
            match layout {
                Layout::Columns(start) => gather(source, piece, width, |c| start(panel.column + c)),
                Layout::Rows { start, stride, len } => {
                    let n = len.saturating_sub(panel.column).min(width);
                    for (k, to) in piece.chunks_exact_mut(width).enumerate() {
                        to[..n].copy_from_slice(&source[start + k * stride + panel.column..][..n]);
                        to[n..].fill(R::ZERO);
                    }
                }
            }
        };
        if parallel {
            parallel_for_each(&mut pieces, fill);
        } else {
            pieces.iter_mut().for_each(fill);
        }
        Self {
            data,
            depth,
            panels,
        }
    }
}

/// Writes row `k` of a packed matrix; zeros for an absent one. Columns beyond it are unchanged.
///
/// # Safety
/// `to` is the data of the matrix whose panels these are, and nothing else uses the row at the same time.
pub unsafe fn put_row<S: Simd, R: Real>(
    panels: &[Panel],
    to: Shared<R>,
    k: usize,
    columns: usize,
    row: Option<&[R]>,
) {
    for panel in panels {
        let width = panel.vectors * lanes::<S, R>();
        let n = columns.saturating_sub(panel.column).min(width);
        // SAFETY: the caller's promises.
        let to = unsafe { to.slice_mut(panel.offset + k * width, n) };
        match row {
            Some(row) => to.copy_from_slice(&row[panel.column..][..n]),
            None => to.fill(R::ZERO),
        }
    }
}

/// Transposes columns that lie one after another into a panel, in blocks small enough for the first-level cache.
fn gather<R: Real>(
    source: &[R],
    panel: &mut [R],
    width: usize,
    start: impl Fn(usize) -> Option<usize>,
) {
    const BLOCK: usize = 16;
    let depth = panel.len() / width;
    let columns: Vec<Option<&[R]>> = (0..width)
        .map(|c| start(c).map(|start| &source[start..][..depth]))
        .collect();
    for (block, to) in panel.chunks_mut(BLOCK * width).enumerate() {
        let first = block * BLOCK;
        for (c, column) in columns.iter().enumerate() {
            let rows = to.chunks_exact_mut(width);
            match column {
                Some(column) => rows.zip(&column[first..]).for_each(|(to, &x)| to[c] = x),
                None => rows.for_each(|to| to[c] = R::ZERO),
            }
        }
    }
}
