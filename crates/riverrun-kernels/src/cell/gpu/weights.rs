//! A cube's rows of the recurrent weights, in the product's layout.
//!
//! They are read once and held for all steps: as many as fit in registers, the others in shared memory, where each thread
//! finds its own in one access.

use cubecl::prelude::*;

use super::product::{Part, Product, plane_of, spilled_at};

/// This thread's weights in the product's layout; those that do not fit in registers go to `spilled`.
#[cube]
pub(super) fn load_weights(
    matrix: &[Vector<u32, Const<4>>],
    spilled: &mut [Vector<u32, Const<4>>],
    part: &Part,
    #[comptime] product: Product,
) -> Array<Vector<u32, Const<4>>> {
    let blocks = comptime!(product.blocks());
    let tiles = comptime!(product.tiles());
    let row = UNIT_POS_X as usize / 4;
    let quarter = UNIT_POS_X as usize % 4;
    let mut weights =
        Array::<Vector<u32, Const<4>>>::new(comptime!((tiles * product.kept * 2).max(1)));
    #[unroll]
    for tile in 0..tiles {
        let gate = comptime!(tile / (product.units / 16));
        let first = part.unit + comptime!(tile % (product.units / 16) * 16) + row;
        let base = comptime!((product.first_gate + gate) * product.hidden) + first;
        #[unroll]
        for p in 0..blocks {
            let k = (plane_of(part, product) * blocks + p) * comptime!(product.block())
                + quarter * comptime!(product.quad());
            let mut low = Vector::<u32, Const<4>>::new(0u32);
            let mut high = Vector::<u32, Const<4>>::new(0u32);
            if k < comptime!(product.depth) {
                if first < comptime!(product.hidden) {
                    let at = base * comptime!(product.row) + comptime!(product.column) + k;
                    low = matrix[at / comptime!(product.quad())];
                }
                if first + 8 < comptime!(product.hidden) {
                    let at = (base + 8) * comptime!(product.row) + comptime!(product.column) + k;
                    high = matrix[at / comptime!(product.quad())];
                }
            }
            if comptime!(p < product.kept) {
                let at = comptime!((tile * product.kept + p) * 2);
                weights[at] = beside(low, high, 0usize);
                weights[at + 1] = beside(low, high, 2usize);
            } else {
                let at = spilled_at(tile, p, product);
                spilled[at] = beside(low, high, 0usize);
                spilled[at + 32] = beside(low, high, 2usize);
            }
        }
    }
    weights
}

/// Words `i` and `i + 1` of both, in the order of the product's `A`.
#[cube]
fn beside(
    low: Vector<u32, Const<4>>,
    high: Vector<u32, Const<4>>,
    #[comptime] i: usize,
) -> Vector<u32, Const<4>> {
    let mut a = Vector::<u32, Const<4>>::new(0u32);
    a.insert(0usize, low.extract(i));
    a.insert(1usize, high.extract(i));
    a.insert(2usize, low.extract(comptime!(i + 1)));
    a.insert(3usize, high.extract(comptime!(i + 1)));
    a
}
