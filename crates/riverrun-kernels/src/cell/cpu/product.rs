//! The product of a step: a few rows of state times the recurrent weights, packed once for all steps.
//!
//! Columns are packed in panels of a few vectors, each panel with its column index fastest: the product reads the
//! weights in the order in which they lie. A tile of rows × vectors stays in registers over the whole depth, so every
//! element is one sum in the order of its index, whatever the tile.

use std::mem::MaybeUninit;

use rayon::prelude::*;

use super::buffer::Buffer;
use super::lanes::{Lanes, Number, Task};

/// Some columns of the weights: `vectors · WIDTH` of them, the first of which is `column`.
struct Panel {
    offset: usize,
    column: usize,
    vectors: usize,
}

/// A matrix `[depth, columns]` in panels.
pub(super) struct Packed<R> {
    data: Buffer<R>,
    depth: usize,
    panels: Vec<Panel>,
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

/// The rows of the tallest tile that stays in registers.
const fn tallest<L: Lanes>(vectors: usize) -> usize {
    match (L::REGISTERS >= 32, vectors) {
        (true, 8) => 2,
        (true, 4) => 6,
        (true, _) => 8,
        (false, 8) => 1,
        (false, 4) => 2,
        (false, 3) => 4,
        (false, 2) => 5,
        (false, _) => 8,
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

/// Numbers in the largest tile.
const TILE: usize = 24 * 16;

/// Rows of the tallest tile.
pub(super) const HEIGHT: usize = 8;

/// How the left side of a product lies in memory. A type rather than a number: the addresses in the innermost loop are
/// as simple as they can be.
pub(super) trait Left {
    /// The element `(m, k)`, in numbers from the first.
    fn at(self, m: usize, k: usize) -> usize;
}

/// Rows, so far apart.
#[derive(Clone, Copy)]
pub(super) struct ByRows(pub usize);

impl Left for ByRows {
    #[inline(always)]
    fn at(self, m: usize, k: usize) -> usize {
        m * self.0 + k
    }
}

/// Columns of [`HEIGHT`] rows, one after the other.
#[derive(Clone, Copy)]
pub(super) struct ByColumns;

impl Left for ByColumns {
    #[inline(always)]
    fn at(self, m: usize, k: usize) -> usize {
        k * HEIGHT + m
    }
}

/// `out = a · packed` for `groups` times `rows` rows.
pub(super) struct Product<'a, R, A> {
    /// `[groups, rows, depth]`, groups `a_group` apart.
    pub a: *const R,
    pub left: A,
    pub a_group: usize,
    pub rows: usize,
    pub groups: usize,
    pub packed: &'a Packed<R>,
    /// `[groups, rows, columns]`, rows `out_stride` and groups `out_group` apart.
    pub out: *mut R,
    pub out_stride: usize,
    pub out_group: usize,
    /// Columns of `out`; those that only fill the last vector are not written.
    pub columns: usize,
    /// Adds to what `out` holds.
    pub add: bool,
    /// Panels from last to first. Going back and forth finds the end of the last pass still in the cache, where a cache
    /// smaller than the weights would otherwise keep nothing that is needed next.
    pub backwards: bool,
}

impl<L: Lanes, A: Left + Copy> Task<L> for Product<'_, L::Real, A> {
    #[inline(always)]
    fn run(self) {
        let count = self.packed.panels.len();
        for index in 0..count {
            let panel = &self.packed.panels[if self.backwards {
                count - 1 - index
            } else {
                index
            }];
            for group in 0..self.groups {
                // SAFETY: whoever makes a `Product` vouches for `a` and `out`; the panel lies inside the packed data.
                unsafe {
                    let a = self.a.add(group * self.a_group);
                    let out = self.out.add(group * self.out_group + panel.column);
                    match panel.vectors {
                        8 => self.panel::<L, 8>(panel, a, out),
                        4 => self.panel::<L, 4>(panel, a, out),
                        3 => self.panel::<L, 3>(panel, a, out),
                        2 => self.panel::<L, 2>(panel, a, out),
                        _ => self.panel::<L, 1>(panel, a, out),
                    }
                }
            }
        }
    }
}

impl<R: Number, A: Left + Copy> Product<'_, R, A> {
    /// All rows of a group and one panel, in tiles as equal in height as can be.
    #[inline(always)]
    unsafe fn panel<L: Lanes<Real = R>, const V: usize>(
        &self,
        panel: &Panel,
        mut a: *const R,
        mut out: *mut R,
    ) {
        let tiles = self.rows.div_ceil(const { tallest::<L>(V) });
        let mut left = self.rows;
        for tile in 0..tiles {
            let height = left.div_ceil(tiles - tile);
            // SAFETY: the heights add up to `rows`.
            unsafe {
                match height {
                    1 => self.tile::<L, 1, V>(panel, a, out),
                    2 => self.tile::<L, 2, V>(panel, a, out),
                    3 => self.tile::<L, 3, V>(panel, a, out),
                    4 => self.tile::<L, 4, V>(panel, a, out),
                    5 => self.tile::<L, 5, V>(panel, a, out),
                    6 => self.tile::<L, 6, V>(panel, a, out),
                    7 => self.tile::<L, 7, V>(panel, a, out),
                    _ => self.tile::<L, 8, V>(panel, a, out),
                }
                a = a.add(self.left.at(height, 0));
                out = out.add(height * self.out_stride);
            }
            left -= height;
        }
    }

    #[inline(always)]
    unsafe fn tile<L: Lanes<Real = R>, const M: usize, const V: usize>(
        &self,
        panel: &Panel,
        a: *const R,
        out: *mut R,
    ) {
        // Heights that the panel never asks for compile to nothing.
        if const { M > tallest::<L>(V) } {
            return;
        }
        // SAFETY: `M` rows of `a` and `out`, the panel's columns, and `depth`, which is the length of both.
        unsafe {
            let mut weights = self.packed.data.as_ptr().add(panel.offset);
            let mut sums = [[L::splat(R::default()); V]; M];
            for k in 0..self.packed.depth {
                let mut row = [L::splat(R::default()); V];
                for v in 0..V {
                    row[v] = L::load(weights.add(v * L::WIDTH));
                }
                for m in 0..M {
                    let x = L::splat(*a.add(self.left.at(m, k)));
                    for v in 0..V {
                        sums[m][v] = x.mul_add(row[v], sums[m][v]);
                    }
                }
                weights = weights.add(V * L::WIDTH);
            }
            let left = self.columns - panel.column;
            if left < V * L::WIDTH {
                // By way of memory: whatever else is done with the sums here would take them out of their registers
                // in the loop above.
                let mut held = MaybeUninit::<[R; TILE]>::uninit();
                let held = held.as_mut_ptr().cast::<R>();
                for m in 0..M {
                    for v in 0..V {
                        sums[m][v].store(held.add((m * V + v) * L::WIDTH));
                    }
                }
                for m in 0..M {
                    for column in 0..left {
                        let to = out.add(m * self.out_stride + column);
                        let sum = *held.add(m * V * L::WIDTH + column);
                        *to = if self.add { *to + sum } else { sum };
                    }
                }
                return;
            }
            for m in 0..M {
                let to = out.add(m * self.out_stride);
                for v in 0..V {
                    let to = to.add(v * L::WIDTH);
                    if self.add {
                        sums[m][v].add(L::load(to)).store(to);
                    } else {
                        sums[m][v].store(to);
                    }
                }
            }
        }
    }
}
