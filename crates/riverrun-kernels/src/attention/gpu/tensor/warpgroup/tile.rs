//! Operands of products of four planes, and rows from registers to memory.

use cubecl::prelude::*;

use crate::attention::gpu::score::{Rows, Sizes};
use crate::attention::gpu::tensor::config::Config;
use crate::attention::gpu::tensor::isolate::{Mask, isolate};
use crate::attention::gpu::tensor::tile::place;
use crate::gpu::tensor::*;
use crate::gpu::warpgroup::{PANEL, Product, ROW, Step, multiply, settle, show, stay};

/// Two numbers to a word, an operand `A` of 16 rows and 16 columns.
pub(super) type Words = Vector<u32, Const<4>>;
/// Sums of two neighbours of a row, and of the row 8 further on.
pub(super) type Sums = Vector<f32, Const<4>>;

/// A product of the cube's rows and the rows of a tile along the channels.
pub(super) fn along_channels(config: &Config) -> Product {
    Product {
        depth: config.steps(),
        columns: config.columns,
        given: false,
        waits: false,
        rows: false,
        storage: config.storage,
    }
}

/// Its steps.
pub(super) fn steps_along_channels(config: &Config) -> Vec<Step> {
    let each = PANEL / 16;
    let step = |depth| Step {
        depth,
        columns: (0, config.columns),
        offset: depth / each * config.columns * ROW + depth % each * 32,
        panel: 0,
        left: depth / each * config.rows() * ROW + depth % each * 32,
    };
    (0..config.steps()).map(step).collect()
}

/// A product of weights and the rows of a tile, added to sums.
fn along_rows(config: &Config) -> Product {
    Product {
        depth: config.columns / 16,
        columns: 16 * config.steps(),
        given: true,
        waits: false,
        rows: true,
        storage: config.storage,
    }
}

fn steps_along_rows(config: &Config) -> Vec<Step> {
    let step = |depth| Step {
        depth,
        columns: (0, 16 * config.steps()),
        offset: 16 * depth * ROW,
        panel: config.columns * ROW,
        left: 0,
    };
    (0..config.columns / 16).map(step).collect()
}

/// Begins `sums += weights · tile`.
#[cube]
pub(super) fn begin_sums(
    weights: &Array<Words>,
    tile: u32,
    sums: &mut Array<Sums>,
    #[comptime] config: Config,
) {
    let (product, steps) = comptime!((along_rows(&config), steps_along_rows(&config)));
    multiply(weights, tile, sums, steps, product);
}

/// Begins the products of the plane's rows, which it holds, and the rows of a tile.
#[cube]
pub(super) fn begin_products(
    held: &Array<Words>,
    tile: u32,
    out: &mut Array<Sums>,
    #[comptime] config: Config,
) {
    let (product, steps) = comptime!((along_channels(&config), steps_along_channels(&config)));
    multiply(held, tile, out, steps, product);
}

/// Before the sums with a tile of keys, which begins at key `column`: [`isolate`], where it is hidden from some row.
#[cube]
pub(super) fn isolate_keys(
    tile: u32,
    column: usize,
    hidden: bool,
    sequence: usize,
    ends: (&Array<usize>, &Array<usize>),
    flags: &mut [u32],
    bounds: &[u32],
    sizes: &Sizes,
    sums: &mut Array<Sums>,
    #[comptime] config: Config,
) {
    if comptime!(config.rule.positions()) {
        if hidden {
            let mask = Mask {
                column,
                sequence,
                by_row: true,
            };
            isolate(
                tile, flags, 0usize, &mask, ends.0, ends.1, bounds, sizes, sums, config,
            );
        }
    }
}

/// Waits for products but the `left` last ones, once what comes before is computed.
#[cube]
pub(super) fn finish(sums: &mut Array<Sums>, #[comptime] columns: usize, #[comptime] left: usize) {
    stay();
    settle(sums, columns, left);
}

/// Waits until the copies of the cube are there, and products may read them.
#[cube]
pub(super) fn meet() {
    wait_for_all();
    show();
    sync_cube();
}

/// The operands `A` of the plane's 16 rows of a tile, all steps in depth.
#[cube]
pub(super) fn hold(tile: u32, held: &mut Array<Words>, #[comptime] config: Config) {
    let row = (UNIT_POS_Y * 16 + UNIT_POS_X % 16) as usize;
    #[unroll]
    for step in 0..comptime!(config.steps()) {
        let vector = comptime!(2 * step) + UNIT_POS_X as usize / 16;
        held[step] = blocks(tile + place(row, vector, comptime!(config.rows()), config));
    }
}

/// Sums, rounded, as the operands `A` of the next product: columns become depth.
#[cube]
pub(super) fn round(sums: &Array<Sums>, words: &mut Array<Words>, #[comptime] config: Config) {
    #[unroll]
    for n in 0..comptime!(config.columns / 16) {
        words[n] = operand(
            sums[comptime!(2 * n)],
            sums[comptime!(2 * n + 1)],
            config.storage,
        );
    }
}

/// The sums of the plane's rows, each times its factor, to rows of a tensor by way of its rows of a tile that no one reads any more;
/// those that are not there are not written.
#[cube]
pub(super) fn write(
    sums: &Array<Sums>,
    factors: &Array<f32>,
    x: &mut [Words],
    rows: &Rows,
    first: usize,
    tile: u32,
    #[comptime] config: Config,
) {
    let (count, vectors) = comptime!((config.rows(), 2 * config.steps()));
    let own = UNIT_POS_Y as usize * 16;
    #[unroll]
    for n in 0..comptime!(config.steps()) {
        let mut pieces = Array::<Sums>::new(2usize);
        #[unroll]
        for half in 0..2usize {
            let mut sum = sums[comptime!(2 * n + half)];
            #[unroll]
            for i in 0..4usize {
                sum.insert(i, sum.extract(i) * factors[comptime!(i / 2)]);
            }
            pieces[half] = sum;
        }
        let words = operand(pieces[0], pieces[1], config.storage);
        let row = own + UNIT_POS_X as usize % 16;
        let vector = comptime!(2 * n) + UNIT_POS_X as usize / 16;
        put_blocks(tile + place(row, vector, count, config), words);
    }
    sync_plane();
    #[unroll]
    for n in 0..comptime!(vectors / 2) {
        let at = UNIT_POS_X as usize + comptime!(32 * n);
        let (row, vector) = (own + at / vectors, at % vectors);
        let words = words_at(tile + place(row, vector, count, config));
        let there = first + row < rows.count && vector * 8 < comptime!(config.dim);
        if there {
            x[(rows.start + (first + row) * rows.stride) / 8 + vector] = words;
        }
    }
}
