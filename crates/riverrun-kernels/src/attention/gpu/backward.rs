//! Backward: one kernel over the queries, one over the keys.

use cubecl::prelude::*;

use super::score::*;
use super::tile::*;
use crate::gpu::math::exp_of_negative_number;

/// Products become `p`, `d_p` becomes the gradient of the products: both 0 where the query does not see the key.
#[cube]
fn differentiate(
    product: f32,
    d_p: f32,
    lse: f32,
    delta: f32,
    seen: bool,
    sizes: &Sizes,
    #[comptime] rule: Rule,
) -> (f32, f32) {
    let (s, slope) = score(product, sizes, rule);
    let p = exp_of_negative_number(lse - s, rule.ptx);
    let d = p * (d_p - delta) * slope * sizes.scale;
    (select(seen, p, 0.0f32), select(seen, d, 0.0f32))
}

/// `dq`. Cubes: at least one for each tile of queries of each head of each sequence.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn attention_queries<F: Float>(
    q: &[F],
    k: &[F],
    v: &[F],
    d_o: &[F],
    bounds: &[u32],
    lse: &[f32],
    delta: &[f32],
    d_q: &mut [F],
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
    let mut lses = Array::<f32>::new(EACH);
    let mut deltas = Array::<f32>::new(EACH);
    let count = comptime!(EACH * config.columns());
    let mut sums = Array::<f32>::new(count);
    let mut ones = Array::<f32>::new(EACH);
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
        lses[i] = lse[lane * sizes.queries + row];
        deltas[i] = delta[lane * sizes.queries + row];
        ones[i] = 1.0f32;
    }
    let last = (first + tile).min(sizes.queries) - 1;
    let from = first_key(first, &sizes, config.rule) / tile;
    let to = end_key(last, &sizes, config.rule).div_ceil(tile);
    let mut s = Array::<f32>::new(SCORES);
    let mut d_p = Array::<f32>::new(SCORES);
    for block in from..to {
        let column = block * tile;
        products::<F>(
            q, &queries, first, k, &keys, column, &mut stage, &mut s, config,
        );
        products::<F>(
            d_o, &queries, first, v, &keys, column, &mut stage, &mut d_p, config,
        );
        let hidden = comptime!(config.rule.reset)
            || column < first_key(last, &sizes, config.rule)
            || column + tile > end_key(first, &sizes, config.rule);
        #[unroll]
        for i in 0..EACH {
            #[unroll]
            for j in 0..EACH {
                let at = comptime!(i * EACH + j);
                let key = column + j * side + x;
                let seen = key >= start[i] && key < end[i];
                let (_p, d) = differentiate(
                    s[at],
                    d_p[at],
                    lses[i],
                    deltas[i],
                    seen,
                    &sizes,
                    config.rule,
                );
                d_p[at] = d;
            }
        }
        put(&d_p, &mut weights, config);
        accumulate::<F>(
            &weights, k, &keys, column, hidden, &mut stage, &mut sums, config,
        );
    }
    write::<F>(&sums, &ones, d_q, &queries, first, config);
}

/// `dk` and `dv`. Cubes: at least one for each tile of keys of each key head of each sequence.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn attention_keys<F: Float>(
    q: &[F],
    k: &[F],
    v: &[F],
    d_o: &[F],
    bounds: &[u32],
    lse: &[f32],
    delta: &[f32],
    d_k: &mut [F],
    d_v: &mut [F],
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
    let (x, y) = (UNIT_POS_X as usize, UNIT_POS_Y as usize);
    let tiles = sizes.keys.div_ceil(tile);
    let first = CUBE_POS % tiles * tile;
    let lane = CUBE_POS / tiles;
    let (sequence, key_head) = (lane / sizes.key_heads, lane % sizes.key_heads);
    let group = sizes.heads / sizes.key_heads;
    let keys = rows_of(sequence, key_head, sizes.keys, sizes.key_heads, config.dim);

    let count = comptime!(EACH * config.columns());
    let mut d_keys = Array::<f32>::new(count);
    let mut d_values = Array::<f32>::new(count);
    let mut ones = Array::<f32>::new(EACH);
    #[unroll]
    for n in 0..count {
        d_keys[n] = 0.0f32;
        d_values[n] = 0.0f32;
    }
    #[unroll]
    for i in 0..EACH {
        ones[i] = 1.0f32;
    }
    // The queries that see any of these keys.
    let last = (first + tile).min(sizes.keys) - 1;
    let from = if comptime!(config.rule.causal) {
        less(first, sizes.keys - sizes.queries)
    } else if comptime!(config.rule.window) {
        less(first + 1, sizes.keys - sizes.queries + sizes.window)
    } else {
        0usize.runtime()
    };
    let to = if comptime!(config.rule.window) {
        less(last + sizes.window, sizes.keys - sizes.queries).min(sizes.queries)
    } else {
        sizes.queries
    };
    let mut s = Array::<f32>::new(SCORES);
    let mut d_p = Array::<f32>::new(SCORES);
    for member in 0..group {
        let head = key_head * group + member;
        let queries = rows_of(sequence, head, sizes.queries, sizes.heads, config.dim);
        let numbers = (sequence * sizes.heads + head) * sizes.queries;
        for block in from / tile..to.div_ceil(tile) {
            let column = block * tile;
            products::<F>(
                k, &keys, first, q, &queries, column, &mut stage, &mut s, config,
            );
            products::<F>(
                v, &keys, first, d_o, &queries, column, &mut stage, &mut d_p, config,
            );
            #[unroll]
            for j in 0..EACH {
                let query = column + j * side + x;
                let row = query.min(sizes.queries - 1);
                let (start, end) = span(row, sequence, bounds, &sizes, config.rule);
                let own_lse = lse[numbers + row];
                let own_delta = delta[numbers + row];
                #[unroll]
                for i in 0..EACH {
                    let at = comptime!(i * EACH + j);
                    let key = first + i * side + y;
                    let seen = query < sizes.queries && key >= start && key < end;
                    let (p, d) = differentiate(
                        s[at],
                        d_p[at],
                        own_lse,
                        own_delta,
                        seen,
                        &sizes,
                        config.rule,
                    );
                    s[at] = p;
                    d_p[at] = d;
                }
            }
            // Without positions every query sees every key.
            let hidden = comptime!(config.rule.positions());
            put(&s, &mut weights, config);
            accumulate::<F>(
                &weights,
                d_o,
                &queries,
                column,
                hidden,
                &mut stage,
                &mut d_values,
                config,
            );
            sync_cube();
            put(&d_p, &mut weights, config);
            accumulate::<F>(
                &weights,
                q,
                &queries,
                column,
                hidden,
                &mut stage,
                &mut d_keys,
                config,
            );
        }
    }
    write::<F>(&d_keys, &ones, d_k, &keys, first, config);
    write::<F>(&d_values, &ones, d_v, &keys, first, config);
}
