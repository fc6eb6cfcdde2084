//! The product of a step: a few rows of state times the recurrent weights; and whatever else is a product with a packed matrix.
//!
//! A tile of rows × vectors stays in registers over the whole depth, so every element is one sum in the order of its
//! index, whatever the tile.

use std::mem::MaybeUninit;

use super::lanes::{Lanes, Number, Task};
use super::packing::{Packed, Panel};

/// Numbers in the largest tile.
const TILE: usize = 24 * 16;

/// Rows of the tallest tile.
pub(super) const HEIGHT: usize = 8;

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
