//! Forward: the softmax is carried along the keys, tile by tile.

use cubecl::prelude::*;

use super::score::*;
use super::tile::*;
use crate::gpu::math::exp_of_negative_number;

/// Cubes: at least one for each tile of queries of each head of each sequence.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn attention_forward<F: Float>(
    q: &[F],
    k: &[F],
    v: &[F],
    bounds: &[u32],
    o: &mut [F],
    lse: &mut [f32],
    cubes: usize,
    sizes: Sizes,
    #[comptime] config: Config,
    #[define(F)] _dtype: ElemType,
) {
    if CUBE_POS >= cubes {
        terminate!();
    }
    let (tile, side) = comptime!((config.tile(), config.side));
    let mut stage = Shared::<[f32]>::new_slice(comptime!(config.stage()));
    let mut weights = Shared::<[f32]>::new_slice(comptime!(config.weights()));
    let mut meeting = Shared::<[f32]>::new_slice(comptime!(config.meeting()));
    let (x, y) = (UNIT_POS_X as usize, UNIT_POS_Y as usize);
    let tiles = sizes.queries.div_ceil(tile);
    let first = CUBE_POS % tiles * tile;
    let lane = CUBE_POS / tiles;
    let (sequence, head) = (lane / sizes.heads, lane % sizes.heads);
    let key_head = head / (sizes.heads / sizes.key_heads);
    let queries = rows_of(sequence, head, sizes.queries, sizes.heads, config.dim);
    let keys = rows_of(sequence, key_head, sizes.keys, sizes.key_heads, config.dim);

    let mut start = Array::<usize>::new(EACH);
    let mut end = Array::<usize>::new(EACH);
    let mut top = Array::<f32>::new(EACH);
    let mut total = Array::<f32>::new(EACH);
    let count = comptime!(EACH * config.columns());
    let mut sums = Array::<f32>::new(count);
    #[unroll]
    for n in 0..count {
        sums[n] = 0.0f32;
    }
    #[unroll]
    for i in 0..EACH {
        let row = (first + i * side + y).min(sizes.queries - 1);
        let (own_start, own_end) = span(row, sequence, bounds, &sizes, config.rule);
        start[i] = own_start;
        end[i] = own_end;
        top[i] = f32::cast_from(f32::MIN);
        total[i] = 0.0f32;
    }
    let last = (first + tile).min(sizes.queries) - 1;
    let from = first_key(first, &sizes, config.rule) / tile;
    let to = end_key(last, &sizes, config.rule).div_ceil(tile);
    let mut s = Array::<f32>::new(SCORES);
    for block in from..to {
        let column = block * tile;
        products::<F>(
            q, &queries, first, k, &keys, column, &mut stage, &mut s, config,
        );
        // What all queries of the tile see needs no second look at its numbers.
        let hidden = comptime!(config.rule.reset)
            || column < first_key(last, &sizes, config.rule)
            || column + tile > end_key(first, &sizes, config.rule);
        #[unroll]
        for i in 0..EACH {
            let mut highest = top[i];
            #[unroll]
            for j in 0..EACH {
                let at = comptime!(i * EACH + j);
                let key = column + j * side + x;
                let (value, _slope) = score(s[at], &sizes, config.rule);
                s[at] = value;
                let seen = key >= start[i] && key < end[i];
                highest = select(seen, highest.max(value), highest);
            }
            meeting[(i * side + y) * side + x] = highest;
        }
        sync_cube();
        #[unroll]
        for i in 0..EACH {
            let mut highest = top[i];
            for n in 0..side {
                highest = highest.max(meeting[(i * side + y) * side + n]);
            }
            // A distance of more than this makes 0 in any case.
            let factor = exp_of_negative_number((highest - top[i]).min(1000.0f32), config.rule.ptx);
            top[i] = highest;
            let mut sum = total[i] * factor;
            #[unroll]
            for j in 0..EACH {
                let at = comptime!(i * EACH + j);
                let key = column + j * side + x;
                let seen = key >= start[i] && key < end[i];
                let p = exp_of_negative_number(highest - s[at], config.rule.ptx);
                s[at] = select(seen, p, 0.0f32);
                sum += s[at];
            }
            total[i] = sum;
            let columns = comptime!(config.columns());
            #[unroll]
            for n in 0..columns {
                sums[i * columns + n] *= factor;
            }
        }
        put(&s, &mut weights, config);
        accumulate::<F>(
            &weights, v, &keys, column, hidden, &mut stage, &mut sums, config,
        );
    }
    sync_cube();
    #[unroll]
    for i in 0..EACH {
        meeting[(i * side + y) * side + x] = total[i];
    }
    sync_cube();
    let mut factors = Array::<f32>::new(EACH);
    #[unroll]
    for i in 0..EACH {
        let mut all = 0.0f32;
        for n in 0..side {
            all += meeting[(i * side + y) * side + n];
        }
        factors[i] = select(start[i] < end[i], 1.0f32 / all, 0.0f32);
        let row = first + i * side + y;
        if x == 0 && row < sizes.queries {
            lse[lane * sizes.queries + row] = top[i] + all.ln();
        }
    }
    write::<F>(&sums, &factors, o, &queries, first, config);
}
