//! Tiles of rows in shared memory, which fill while the cube computes, and the operands that planes take from them.

use cubecl::prelude::*;

use super::config::Config;
use crate::attention::gpu::score::{Rows, Sizes, rows_of, span};
use crate::gpu::mma::multiply_add;
use crate::gpu::storage::pair;
pub(super) use crate::gpu::tensor::*;
use crate::gpu::warpgroup::{PANEL, ROW, swizzled};

/// The end of the keys that the first row of a tile of queries sees, and the first key that the last one sees.
#[cube]
pub(super) fn tile_ends(
    column: usize,
    end: usize,
    sequence: usize,
    bounds: &[u32],
    sizes: &Sizes,
    #[comptime] config: Config,
) -> (usize, usize) {
    let (_start, first_end) = span(column, sequence, bounds, sizes, config.rule);
    let (last_start, _end) = span(end - 1, sequence, bounds, sizes, config.rule);
    (first_end, last_start)
}

/// A tile of queries, and the tiles of keys that any of them sees.
#[derive(CubeType)]
pub(super) struct Walk {
    /// The first query.
    pub first: usize,
    /// The head of all sequences, and the sequence.
    pub lane: usize,
    pub sequence: usize,
    pub queries: Rows,
    pub keys: Rows,
    /// The first tile of keys, and the end of those tiles.
    pub from: usize,
    pub to: usize,
    /// The end of the keys that the first query sees, and the first key that the last one sees.
    pub first_end: usize,
    pub last_start: usize,
}

/// That of the cube. Under a causal mask the last tile of queries has the most keys, and goes first.
#[cube]
pub(super) fn own_walk(bounds: &[u32], sizes: &Sizes, #[comptime] config: Config) -> Walk {
    let (rows, columns, rule) = comptime!((config.rows(), config.columns, config.rule));
    let tiles = sizes.queries.div_ceil(rows);
    let first = (tiles - 1 - CUBE_POS % tiles) * rows;
    let lane = CUBE_POS / tiles;
    let (sequence, head) = (lane / sizes.heads, lane % sizes.heads);
    let key_head = head / (sizes.heads / sizes.key_heads);
    let last = (first + rows).min(sizes.queries) - 1;
    let (first_start, first_end) = span(first, sequence, bounds, sizes, rule);
    let (last_start, last_end) = span(last, sequence, bounds, sizes, rule);
    Walk {
        first,
        lane,
        sequence,
        queries: rows_of(sequence, head, sizes.queries, sizes.heads, config.dim),
        keys: rows_of(sequence, key_head, sizes.keys, sizes.key_heads, config.dim),
        from: first_start / columns,
        to: last_end.div_ceil(columns),
        first_end,
        last_start,
    }
}

/// Bytes from the start of a tile of `count` rows to a vector of 16 bytes of a row.
#[cube]
pub(super) fn place(
    row: usize,
    vector: usize,
    #[comptime] count: usize,
    #[comptime] config: Config,
) -> u32 {
    if comptime!(config.panels) {
        let each = comptime!(PANEL / 8);
        let panel = (vector / each * comptime!(count * ROW)) as u32;
        panel + swizzled(row as u32, (vector % each) as u32)
    } else {
        ((row * comptime!(config.pitch()) + vector) * 16) as u32
    }
}

/// Begins to copy `count` rows from `first` on. Channels and rows that are not there become zeros.
#[cube]
pub(super) fn load(
    at: u32,
    source: u64,
    rows: &Rows,
    first: usize,
    #[comptime] count: usize,
    #[comptime] config: Config,
) {
    let units = comptime!(32 * config.planes);
    let each = comptime!(2 * config.steps());
    let total = comptime!(count * each);
    for n in 0..comptime!(total.div_ceil(units)) {
        let vector = n * units + UNIT_POS as usize;
        // A thread keeps its channels, if it can.
        let (row, piece) = if comptime!(units % each == 0) {
            let own = UNIT_POS as usize;
            (n * comptime!(units / each) + own / each, own % each)
        } else {
            (vector / each, vector % each)
        };
        let (i, d) = (first + row, piece * 8);
        let there = i < rows.count && d < comptime!(config.dim);
        let bytes = select(there, 16u32, 0u32);
        let number =
            rows.start + i.min(rows.count - 1) * rows.stride + d.min(comptime!(config.dim - 8));
        let to = at + place(row, piece, count, config);
        if comptime!(total % units == 0) || vector < total {
            copy_16(to, source + u64::cast_from(number) * 2u64, bytes);
        }
    }
}

/// Begins to copy the numbers of `config.columns` rows from `first` on, of two tensors of a number a row.
#[cube]
pub(super) fn load_numbers(
    at: u32,
    sources: (u64, u64),
    start: usize,
    first: usize,
    count: usize,
    #[comptime] config: Config,
) {
    let columns = comptime!(config.columns);
    let units = comptime!(32 * config.planes);
    for n in 0..comptime!((2 * columns).div_ceil(units)) {
        let place = n * units + UNIT_POS as usize;
        let row = first + place % columns;
        let source = select(place < columns, sources.0, sources.1);
        let number = start + row.min(count - 1);
        if comptime!(2 * columns % units == 0) || place < comptime!(2 * columns) {
            copy_4(
                at + (place * 4) as u32,
                source + u64::cast_from(number) * 4u64,
                select(row < count, 4u32, 0u32),
            );
        }
    }
}

/// The place in the cube's tile of the thread's row `own`, of the two of each block that it has sums of.
#[cube]
pub(super) fn own_place(#[comptime] own: usize, #[comptime] config: Config) -> usize {
    UNIT_POS_Y as usize * comptime!(16 * config.blocks)
        + comptime!(own / 2 * 16 + own % 2 * 8)
        + UNIT_POS_X as usize / 4
}

/// The operands `A` of a block of 16 rows, all steps in depth.
#[cube]
pub(super) fn hold(at: u32, held: &mut Array<Vector<u32, Const<4>>>, #[comptime] config: Config) {
    let steps = comptime!(config.steps());
    #[unroll]
    for b in 0..comptime!(config.blocks) {
        #[unroll]
        for step in 0..steps {
            held[comptime!(b * steps + step)] =
                blocks(at + comptime!(config.offset(b * 16, step * 2)));
        }
    }
}

/// The products of the plane's rows and the rows of a tile along the channels: `out[b, n]` has columns `8 n` and on of the
/// block of rows `b`. The plane's rows are `held`, or begin at `at`.
#[cube]
pub(super) fn products(
    at: u32,
    held: &Array<Vector<u32, Const<4>>>,
    tile: u32,
    out: &mut Array<Vector<f32, Const<4>>>,
    #[comptime] config: Config,
) {
    let (steps, count, each) = comptime!((config.steps(), config.blocks, config.columns / 8));
    let storage = comptime!(config.storage);
    let right = tile + own_column(comptime!(config.pitch()));
    #[unroll]
    for n in 0..comptime!(count * each) {
        out[n] = Vector::<f32, Const<4>>::new(0.0f32);
    }
    #[unroll]
    for step in 0..steps {
        let mut a = Array::<Vector<u32, Const<4>>>::new(count);
        #[unroll]
        for b in 0..count {
            a[b] = if comptime!(config.held) {
                held[comptime!(b * steps + step)]
            } else {
                blocks(at + comptime!(config.offset(b * 16, step * 2)))
            };
        }
        #[unroll]
        for pair in 0..comptime!(each / 2) {
            let w = blocks(right + comptime!(config.offset(pair * 16, step * 2)));
            #[unroll]
            for b in 0..count {
                let to = comptime!(b * each + pair * 2);
                out[to] =
                    multiply_add(a[b], w.extract(0usize), w.extract(1usize), out[to], storage);
                let to = comptime!(b * each + pair * 2 + 1);
                out[to] =
                    multiply_add(a[b], w.extract(2usize), w.extract(3usize), out[to], storage);
            }
        }
    }
}

/// `sums += weights · tile`: `weights[b, n]` as [`products`] leaves them, rounded to storage here.
#[cube]
pub(super) fn accumulate(
    weights: &Array<Vector<f32, Const<4>>>,
    tile: u32,
    sums: &mut Array<Vector<f32, Const<4>>>,
    #[comptime] config: Config,
) {
    let (steps, count, each) = comptime!((config.steps(), config.blocks, config.columns / 8));
    let storage = comptime!(config.storage);
    let right = tile + own_row(comptime!(config.pitch()));
    #[unroll]
    for part in 0..comptime!(each / 2) {
        let mut a = Array::<Vector<u32, Const<4>>>::new(count);
        #[unroll]
        for b in 0..count {
            let at = comptime!(b * each + part * 2);
            a[b] = operand(weights[at], weights[comptime!(at + 1)], storage);
        }
        #[unroll]
        for step in 0..steps {
            let w = blocks_transposed(right + comptime!(config.offset(part * 16, step * 2)));
            #[unroll]
            for b in 0..count {
                let to = comptime!((b * steps + step) * 2);
                sums[to] = multiply_add(
                    a[b],
                    w.extract(0usize),
                    w.extract(1usize),
                    sums[to],
                    storage,
                );
                let to = comptime!((b * steps + step) * 2 + 1);
                sums[to] = multiply_add(
                    a[b],
                    w.extract(2usize),
                    w.extract(3usize),
                    sums[to],
                    storage,
                );
            }
        }
    }
}

/// The sums of the plane's rows, each times its factor, to rows of a tensor; those that are not there are not written.
#[cube]
pub(super) fn write(
    sums: &Array<Vector<f32, Const<4>>>,
    factors: &Array<f32>,
    x: &mut [u32],
    rows: &Rows,
    first: usize,
    #[comptime] config: Config,
) {
    let (steps, count) = comptime!((config.steps(), config.blocks));
    #[unroll]
    for own in 0..comptime!(2 * count) {
        let row = first + own_place(own, config);
        let start = rows.start + row * rows.stride + UNIT_POS_X as usize % 4 * 2;
        #[unroll]
        for n in 0..comptime!(2 * steps) {
            if row < rows.count && comptime!(n * 8 < config.dim) {
                let sum = sums[comptime!(own / 2 * 2 * steps + n)];
                let low = sum.extract(comptime!(own % 2 * 2)) * factors[own];
                let high = sum.extract(comptime!(own % 2 * 2 + 1)) * factors[own];
                x[(start + comptime!(n * 8)) / 2] = pair(low, high, config.storage);
            }
        }
    }
}
