//! The weights in the order in which threads read them.

use cubecl::client::Client;
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::plan::Config;
use super::product::{Product, Quad};
use crate::gpu::storage::{Storage, pair};
use crate::gpu::{Dtype, address, buffer, grid};
use crate::rssm::sequence::Weights;

/// Threads of a cube.
const UNITS: usize = 256;

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

/// A matrix `[depth, units]`, or blocks of such matrices, whose units are the rows of a product.
fn columns(units: usize, depth: usize) -> Layout {
    Layout {
        offset: 0,
        width: units,
        block: units * depth,
        unit: 1,
        gate: None,
        column: units,
    }
}

/// A matrix `[units, depth]`, or blocks of such matrices.
fn rows(units: usize, depth: usize) -> Layout {
    Layout {
        unit: depth,
        column: 1,
        ..columns(units, depth)
    }
}

/// The matrices of the weights, in one buffer.
pub(super) fn packed(
    client: &Client,
    config: &Config,
    weights: &Weights<Handle>,
    dtype: Dtype,
    backward: bool,
) -> Handle {
    let (deter, hidden, logits, width) = (config.deter, config.hidden, config.logits, config.width);
    let products = &config.products;
    let gates = Layout {
        block: 3 * width * width,
        gate: Some(width),
        column: 3 * width,
        ..columns(width, width)
    };
    let below = |layout| Layout {
        offset: hidden * deter,
        ..layout
    };
    // A matrix: its product, its layouts forward and backward, its buffer and its length.
    type Matrix<'a> = (Product, [Layout; 2], &'a Handle, usize);
    let dense = |product, handle, from: usize, to: usize| -> Matrix {
        (
            product,
            [columns(to, from), rows(from, to)],
            handle,
            from * to,
        )
    };
    let inputs = [columns(deter, hidden), rows(hidden, deter)];
    let all: [Matrix; 8] = [
        (
            products.gates,
            [gates, rows(width, 3 * width)],
            &weights.gates,
            3 * deter * width,
        ),
        (
            products.blocks,
            [columns(width, width), rows(width, width)],
            &weights.blocks,
            deter * width,
        ),
        (
            products.inputs_deter,
            inputs,
            &weights.inputs,
            2 * hidden * deter,
        ),
        (
            products.inputs_stoch,
            inputs.map(below),
            &weights.inputs,
            2 * hidden * deter,
        ),
        dense(products.logits, &weights.logits, hidden, logits),
        dense(products.stoch, &weights.stoch, logits, hidden),
        dense(products.posterior, &weights.posterior, deter, hidden),
        dense(products.deter, &weights.deter, deter, hidden),
    ];
    let to = client.empty(config.packed * 16);
    let most = all.iter().map(|(_, _, _, numbers)| *numbers);
    let address = address(
        most.fold(config.packed * 16 / dtype.size(), usize::max),
        dtype,
    );
    for (product, layouts, matrix, numbers) in all {
        // The plan of shared memory does not matter here, and would compile kernels that are the same.
        let product = Product {
            held: None,
            ..product
        };
        // SAFETY: the lengths have been checked, or are those of the buffer just made; the kernel indexes within them.
        unsafe {
            pack::launch_unchecked(
                client,
                grid(client, product.vectors().div_ceil(UNITS)),
                CubeDim::new_1d(UNITS as u32),
                address,
                buffer(matrix, numbers, 1),
                buffer(&to, config.packed, 1),
                product,
                layouts[usize::from(backward)],
                dtype.elem(),
            );
        }
    }
    to
}
