//! Products of a plane's operands with tiles of a chunk: each plane by itself or, where tiles are in panels, four at a time.

use cubecl::prelude::*;

use super::tile::*;
use crate::gpu::mma::multiply_add;
use crate::gpu::storage::Storage;
use crate::gpu::tensor::{blocks, blocks_transposed, own_column, own_row};
use crate::gpu::warpgroup::{self, PANEL, ROW, Step};

/// Which blocks of 16 by 16 of `B` are not 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Filled {
    All,
    /// Those whose depth is at most their column.
    Upper,
    /// Those whose depth is at least their column.
    Lower,
}

impl Filled {
    fn has(self, depth: usize, column: usize) -> bool {
        match self {
            Self::All => true,
            Self::Upper => depth <= column,
            Self::Lower => depth >= column,
        }
    }
}

/// A product with a tile: the columns and the depth of `B`, in blocks of 16.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Product {
    pub depth: usize,
    pub columns: usize,
    /// Numbers of a row of the tile.
    pub len: usize,
    /// A row of the tile is a row of `B`; else it is a column.
    pub rows: bool,
    pub filled: Filled,
    pub storage: Storage,
    /// The tile is one of panels, and four planes multiply at a time.
    pub panels: bool,
}

impl Product {
    /// The products of four planes: of each panel of sums, those of all columns first.
    fn steps(self) -> Vec<Step> {
        let (depth, columns) = (self.depth, 16 * self.columns);
        let mut steps = Vec::new();
        for panel in 0..columns / PANEL {
            let first = panel * PANEL;
            for depth in 0..depth {
                let offset = match self.rows {
                    true => (panel * 16 * self.depth + 16 * depth) * ROW,
                    false => {
                        let each = PANEL / 16;
                        depth / each * columns * ROW + depth % each * 32
                    }
                };
                // Sums that begin in the middle would make each product wait for the one before.
                let count = match self.filled {
                    Filled::Lower => 16 * (depth + 1),
                    Filled::All | Filled::Upper => PANEL,
                };
                steps.push(Step {
                    depth,
                    columns: (first, count),
                    offset,
                    panel: 0,
                    left: 0,
                });
            }
        }
        if self.filled == Filled::Lower {
            steps.reverse();
        }
        steps
    }
}

/// `sums += a · B`, `B` in the tile at `tile`.
#[cube]
pub(super) fn multiply(
    a: &Array<Words>,
    tile: u32,
    sums: &mut Array<Sums>,
    #[comptime] product: Product,
) {
    compute(a, tile, sums, product, true, true);
}

/// `sums = a · B`.
#[cube]
pub(super) fn set_product(
    a: &Array<Words>,
    tile: u32,
    sums: &mut Array<Sums>,
    #[comptime] product: Product,
) {
    compute(a, tile, sums, product, false, true);
}

/// Begins to add a product to the sums that are `given`, or to set them; nothing may read or change them before [`settle`].
#[cube]
pub(super) fn begin(
    a: &Array<Words>,
    tile: u32,
    sums: &mut Array<Sums>,
    #[comptime] product: Product,
    #[comptime] given: bool,
) {
    compute(a, tile, sums, product, given, false);
}

#[cube]
fn compute(
    a: &Array<Words>,
    tile: u32,
    sums: &mut Array<Sums>,
    #[comptime] product: Product,
    #[comptime] given: bool,
    #[comptime] waits: bool,
) {
    if comptime!(product.panels) {
        let of_planes = comptime!(warpgroup::Product {
            depth: product.depth,
            columns: 16 * product.columns,
            given,
            waits,
            rows: product.rows,
            storage: product.storage,
        });
        warpgroup::multiply(a, tile, sums, comptime!(product.steps()), of_planes);
    } else {
        if comptime!(!given) {
            clear(sums, comptime!(2 * product.columns));
        }
        by_plane(a, tile, sums, product);
    }
}

/// Waits for the products that have begun, but for the `left` last ones.
#[cube]
pub(super) fn settle(
    sums: &mut Array<Sums>,
    #[comptime] product: Product,
    #[comptime] left: usize,
) {
    if comptime!(product.panels) {
        warpgroup::settle(sums, comptime!(16 * product.columns), left);
    }
}

#[cube]
fn by_plane(a: &Array<Words>, tile: u32, sums: &mut Array<Sums>, #[comptime] product: Product) {
    let (len, storage) = comptime!((product.len, product.storage));
    let own = if comptime!(product.rows) {
        tile + own_row(comptime!(pitch(len)))
    } else {
        tile + own_column(comptime!(pitch(len)))
    };
    #[unroll]
    for step in 0..comptime!(product.depth) {
        #[unroll]
        for column in 0..comptime!(product.columns) {
            if comptime!(product.filled.has(step, column)) {
                let b = if comptime!(product.rows) {
                    blocks_transposed(own + comptime!(offset(len, 16 * step, 2 * column)))
                } else {
                    blocks(own + comptime!(offset(len, 16 * column, 2 * step)))
                };
                let (left, right) = comptime!((2 * column, 2 * column + 1));
                sums[left] = multiply_add(
                    a[step],
                    b.extract(0usize),
                    b.extract(1usize),
                    sums[left],
                    storage,
                );
                sums[right] = multiply_add(
                    a[step],
                    b.extract(2usize),
                    b.extract(3usize),
                    sums[right],
                    storage,
                );
            }
        }
    }
}
