//! A product with a packed matrix, in tiles of rows × vectors.
//!
//! A tile stays in registers over the whole depth, so every element is one sum in the order of its index, whatever the
//! tile, the number of rows or the number of threads.

use pulp::{Simd, WithSimd};

use super::packed::{PackedMatrix, Panel};
use crate::simd::cache_hints::prefetch;
use crate::simd::real::Real;
use crate::simd::vector::Vector;

/// Rows of the tallest tile.
pub const HEIGHT: usize = 8;

/// The lowest tile that has the time to ask for weights ahead of their use.
const TALL: usize = 4;

/// Rows of weights from their use to those that are on their way from the second-level cache meanwhile.
const AHEAD: usize = 8;

/// Numbers in the largest tile: 24 registers of 16.
const TILE: usize = 24 * 16;

/// The rows of the tallest tile that stays in registers, with the vectors of a row, one factor, and one register to spare:
/// without it, compilers keep a sum in memory, and its additions wait for that. 0 where no panel has so many vectors.
const fn tallest<S: Simd>(vectors: usize) -> usize {
    match (S::REGISTER_COUNT >= 32, vectors) {
        (true, 8) => 2,
        (true, 4) => 6,
        (true, _) => 8,
        (false, 8) => 1,
        (false, 4) => 2,
        (false, 3) => 0,
        (false, 2) => 6,
        (false, _) => 8,
    }
}

/// The memory layout of the left side of a product. A type rather than a number, so that the innermost loop has the simplest
/// addresses.
pub trait Left: Copy + Send + Sync {
    /// `M` rows.
    type Rows<'a, R: Real, const M: usize>: Elements<R>;

    /// The `M` rows of `depth` elements of which `a` has the first element.
    fn rows<R: Real, const M: usize>(self, a: &[R], depth: usize) -> Self::Rows<'_, R, M>;
    /// From the first element of a row to that of `rows` rows further.
    fn skip(self, rows: usize) -> usize;
}

/// The elements of some rows.
pub trait Elements<R> {
    /// Element `k` of row `m`.
    fn at(&self, m: usize, k: usize) -> R;
}

/// Rows this far apart.
#[derive(Clone, Copy)]
pub struct ByRows(pub usize);

impl<R: Real, const M: usize> Elements<R> for [&[R]; M] {
    #[inline(always)]
    fn at(&self, m: usize, k: usize) -> R {
        self[m][k]
    }
}

impl Left for ByRows {
    type Rows<'a, R: Real, const M: usize> = [&'a [R]; M];

    #[inline(always)]
    fn rows<R: Real, const M: usize>(self, a: &[R], depth: usize) -> [&[R]; M] {
        let mut rows: [&[R]; M] = [&[]; M];
        for m in 0..M {
            rows[m] = &a[m * self.0..][..depth];
        }
        rows
    }

    #[inline(always)]
    fn skip(self, rows: usize) -> usize {
        rows * self.0
    }
}

/// Columns `APART` elements apart, at least [`HEIGHT`], with as many elements again after the last.
#[derive(Clone, Copy)]
pub struct ByColumns<const APART: usize>;

impl<R: Real, const APART: usize> Elements<R> for &[[R; APART]] {
    #[inline(always)]
    fn at(&self, m: usize, k: usize) -> R {
        self[k][m]
    }
}

impl<const APART: usize> Left for ByColumns<APART> {
    type Rows<'a, R: Real, const M: usize> = &'a [[R; APART]];

    #[inline(always)]
    fn rows<R: Real, const M: usize>(self, a: &[R], depth: usize) -> &[[R; APART]] {
        a[..depth * APART].as_chunks().0
    }

    #[inline(always)]
    fn skip(self, rows: usize) -> usize {
        rows
    }
}

/// `out = a · packed + init` for `groups` times `rows` rows.
pub struct Product<'a, R, A> {
    /// `[groups, rows, depth]`, groups `a_group` apart.
    pub a: &'a [R],
    pub left: A,
    pub a_group: usize,
    pub rows: usize,
    pub groups: usize,
    pub packed: &'a PackedMatrix<R>,
    /// `[packed columns]`: what every sum starts from; zero if absent.
    pub init: Option<&'a [R]>,
    /// `[groups, rows, columns]`, rows `out_stride` and groups `out_group` apart.
    pub out: &'a mut [R],
    pub out_stride: usize,
    pub out_group: usize,
    /// Columns of `out`; those that only fill the last vector are not written.
    pub columns: usize,
    /// Adds to `out` instead of overwriting it.
    pub add: bool,
    /// Panels from last to first. Alternating directions finds the end of the last pass still in the cache; otherwise a cache
    /// smaller than the weights never hits.
    pub backwards: bool,
}

impl<R: Real, A: Left> WithSimd for Product<'_, R, A> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        if self.rows == 0 {
            return;
        }
        let panels = &self.packed.panels;
        for index in 0..panels.len() {
            let panel = &panels[if self.backwards {
                panels.len() - 1 - index
            } else {
                index
            }];
            if panel.column >= self.columns {
                continue;
            }
            for group in 0..self.groups {
                match panel.vectors {
                    8 => self.panel::<S, 8>(simd, panel, group),
                    4 => self.panel::<S, 4>(simd, panel, group),
                    3 if const { tallest::<S>(3) > 0 } => self.panel::<S, 3>(simd, panel, group),
                    2 => self.panel::<S, 2>(simd, panel, group),
                    _ => self.panel::<S, 1>(simd, panel, group),
                }
            }
        }
    }
}

impl<R: Real, A: Left> Product<'_, R, A> {
    /// All rows of a group and one panel, in tiles as equal in height as can be.
    #[inline(always)]
    fn panel<S: Simd, const V: usize>(&mut self, simd: S, panel: &Panel, group: usize) {
        let tiles = self.rows.div_ceil(const { tallest::<S>(V) });
        let mut done = 0;
        for tile in 0..tiles {
            let height = (self.rows - done).div_ceil(tiles - tile);
            let a = group * self.a_group + self.left.skip(done);
            let out = group * self.out_group + done * self.out_stride + panel.column;
            match height {
                1 => self.tile::<S, 1, V>(simd, panel, a, out),
                2 => self.tile::<S, 2, V>(simd, panel, a, out),
                3 => self.tile::<S, 3, V>(simd, panel, a, out),
                4 => self.tile::<S, 4, V>(simd, panel, a, out),
                5 => self.tile::<S, 5, V>(simd, panel, a, out),
                6 => self.tile::<S, 6, V>(simd, panel, a, out),
                7 => self.tile::<S, 7, V>(simd, panel, a, out),
                _ => self.tile::<S, 8, V>(simd, panel, a, out),
            }
            done += height;
        }
    }

    /// `M` rows and `V` vectors, of which `a` and `out` are the places of the first. A function of its own: the compiler
    /// takes minutes over a function that has every tile.
    #[inline(never)]
    fn tile<S: Simd, const M: usize, const V: usize>(
        &mut self,
        simd: S,
        panel: &Panel,
        a: usize,
        out: usize,
    ) {
        // Unused heights compile to nothing.
        if const { M <= tallest::<S>(V) } {
            simd.vectorize(Tile::<_, _, M, V> {
                product: self,
                panel,
                a,
                out,
            });
        }
    }
}

/// See [`Product::tile`].
struct Tile<'t, 'a, R, A, const M: usize, const V: usize> {
    product: &'t mut Product<'a, R, A>,
    panel: &'t Panel,
    a: usize,
    out: usize,
}

impl<R: Real, A: Left, const M: usize, const V: usize> WithSimd for Tile<'_, '_, R, A, M, V> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self {
            product,
            panel,
            a,
            out,
        } = self;
        let lanes = const { size_of::<R::Lanes<S>>() / size_of::<R>() };
        let depth = product.packed.depth;
        let weights = &product.packed.data.as_slice()[panel.offset..][..depth * V * lanes];
        let (weights, _) = R::split::<S>(weights).0.as_chunks::<V>();
        let a = product.left.rows::<R, M>(&product.a[a..], weights.len());

        let mut sums = [[Vector::splat(simd, R::ZERO); V]; M];
        if let Some(init) = product.init {
            let (init, _) = R::split::<S>(&init[panel.column..][..V * lanes]);
            for v in 0..V {
                for m in 0..M {
                    sums[m][v] = Vector::new(simd, init[v]);
                }
            }
        }
        for (k, weights) in weights.iter().enumerate() {
            // A tall tile waits for nothing else.
            if const { M >= TALL } {
                let next = weights.as_ptr().wrapping_add(AHEAD * V);
                for v in 0..V {
                    prefetch(next.wrapping_add(v));
                }
            }
            let mut row = [Vector::splat(simd, R::ZERO); V];
            for v in 0..V {
                row[v] = Vector::new(simd, weights[v]);
            }
            for m in 0..M {
                let x = Vector::splat(simd, a.at(m, k));
                for v in 0..V {
                    sums[m][v] = x.mul_add(row[v], sums[m][v]);
                }
            }
        }

        let left = product.columns - panel.column;
        if left < V * lanes {
            // Through memory: any other use of the sums here would spill their registers in the loop above.
            let mut held = [R::ZERO; TILE];
            let (to, _) = R::split_mut::<S>(&mut held);
            for m in 0..M {
                for v in 0..V {
                    to[m * V + v] = sums[m][v].lanes;
                }
            }
            for m in 0..M {
                let to = &mut product.out[out + m * product.out_stride..][..left];
                let from = &held[m * V * lanes..][..left];
                if product.add {
                    to.iter_mut().zip(from).for_each(|(to, &from)| *to += from);
                } else {
                    to.copy_from_slice(from);
                }
            }
            return;
        }
        for m in 0..M {
            let to = &mut product.out[out + m * product.out_stride..][..V * lanes];
            let (to, _) = R::split_mut::<S>(to);
            for v in 0..V {
                to[v] = if product.add {
                    (sums[m][v] + Vector::new(simd, to[v])).lanes
                } else {
                    sums[m][v].lanes
                };
            }
        }
    }
}
