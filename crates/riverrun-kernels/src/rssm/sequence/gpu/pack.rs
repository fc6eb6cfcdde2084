//! The weights in the order in which threads read them.

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::product::{Product, Quad};
use crate::gpu::storage::{Storage, pair};

/// Where a matrix has the weight of a unit, a gate and a column: `offset + unit / width · block + unit % width · unit + gate · gate +
/// column · column`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Layout {
    pub offset: usize,
    /// Units of a block.
    pub width: usize,
    pub block: usize,
    pub unit: usize,
    /// Where the tiles of a group are gates of the same units; otherwise they are further units.
    pub gate: Option<usize>,
    pub column: usize,
}

/// The place of a weight.
#[cube]
fn place(
    group: usize,
    tile: usize,
    row: usize,
    #[comptime] product: Product,
    #[comptime] layout: Layout,
) -> usize {
    let unit = if comptime!(layout.gate.is_some()) {
        group * 16 + row
    } else {
        (group * comptime!(product.tiles) + tile) * 16 + row
    };
    let gate = tile * comptime!(layout.gate.unwrap_or(0));
    unit / comptime!(layout.width) * comptime!(layout.block)
        + unit % comptime!(layout.width) * comptime!(layout.unit)
        + gate
        + comptime!(layout.offset)
}

/// The word of the numbers at column `k` and, in 16 bits, the one after; 0 beyond the depth.
#[cube]
fn word_at<F: Float>(
    matrix: &[F],
    place: usize,
    k: usize,
    #[comptime] product: Product,
    #[comptime] layout: Layout,
) -> u32 {
    let step = comptime!(layout.column);
    let mut word = 0u32;
    if k < comptime!(product.depth) {
        let low = f32::cast_from(matrix[place + k * step]);
        word = if comptime!(product.storage == Storage::Plain) {
            u32::reinterpret(low)
        } else {
            pair(
                low,
                f32::cast_from(matrix[place + (k + 1) * step]),
                product.storage,
            )
        };
    }
    word
}

/// Cubes: at least a thread for each quad of the matrix.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn pack<F: Float>(
    matrix: &[F],
    packed: &mut [Quad],
    #[comptime] product: Product,
    #[comptime] layout: Layout,
    #[define(F)] _dtype: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i < comptime!(product.vectors()) {
        let lane = i % 32;
        let half = i / 32 % 2;
        let block = i / 64 % comptime!(product.tile() / 64);
        let tile = i / comptime!(product.tile()) % comptime!(product.tiles);
        let group = i / comptime!(product.group());
        let low = place(group, tile, lane / 4, product, layout);
        let high = place(group, tile, lane / 4 + 8, product, layout);
        let word = comptime!(product.quad() / 4);
        let k = block * comptime!(product.block())
            + lane % 4 * comptime!(product.quad())
            + half * comptime!(product.quad() / 2);
        let mut quad = Quad::new(0u32);
        quad.insert(0usize, word_at::<F>(matrix, low, k, product, layout));
        quad.insert(1usize, word_at::<F>(matrix, high, k, product, layout));
        quad.insert(2usize, word_at::<F>(matrix, low, k + word, product, layout));
        quad.insert(
            3usize,
            word_at::<F>(matrix, high, k + word, product, layout),
        );
        packed[i + comptime!(product.first)] = quad;
    }
}
