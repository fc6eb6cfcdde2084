//! Backward over the keys: `dk` and `dv`.

use std::f32::consts::LOG2_E;

use cubecl::prelude::*;

use super::config::{Config, FLAGS, Pass};
use super::isolate::{Mask, isolate};
use super::queries::differentiate;
use super::tile::*;
use crate::attention::gpu::score::{Sizes, less, rows_of, span};
use crate::gpu::address::address;

/// Begins to copy the rows of the `n`-th tile of queries, heads of the group one after the other: `q`, `d_o`, `lse`, `δ`.
#[cube]
pub(super) fn load_queries(
    at: u32,
    n: usize,
    sources: (u64, u64, u64, u64),
    sequence: usize,
    key_head: usize,
    from: usize,
    count: usize,
    sizes: &Sizes,
    #[comptime] config: Config,
) {
    let columns = comptime!(config.columns);
    let size = comptime!(config.bytes(config.columns));
    let head = key_head * (sizes.heads / sizes.key_heads) + n / count;
    let column = (from + n % count) * columns;
    let queries = rows_of(sequence, head, sizes.queries, sizes.heads, config.dim);
    load(at, sources.0, &queries, column, columns, config);
    load(at + size, sources.1, &queries, column, columns, config);
    load_numbers(
        at + comptime!(2 * size),
        (sources.2, sources.3),
        (sequence * sizes.heads + head) * sizes.queries,
        column,
        sizes.queries,
        config,
    );
}

/// The tiles of queries that see any of the keys from `first` to `last`: the first, and how many.
#[cube]
pub(super) fn queries_of(
    first: usize,
    last: usize,
    sizes: &Sizes,
    #[comptime] config: Config,
) -> (usize, usize) {
    let (columns, rule) = comptime!((config.columns, config.rule));
    let from = if comptime!(rule.causal) {
        less(first, sizes.keys - sizes.queries)
    } else if comptime!(rule.window) {
        less(first + 1, sizes.keys - sizes.queries + sizes.window)
    } else {
        0usize.runtime()
    };
    let to = if comptime!(rule.window) {
        less(last + sizes.window, sizes.keys - sizes.queries).min(sizes.queries)
    } else {
        sizes.queries
    };
    let (from, to) = (from / columns, to.div_ceil(columns));
    (from, less(to, from))
}

/// `dk` and `dv`, or one of them. Cubes: at least one for each tile of keys of each key head of each sequence.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn attention_keys_tensor(
    q: &[u32],
    k: &[u32],
    v: &[u32],
    d_o: &[u32],
    bounds: &[u32],
    lse: &[f32],
    delta: &[f32],
    d_k: &mut [u32],
    d_v: &mut [u32],
    cubes: usize,
    sizes: Sizes,
    #[comptime] config: Config,
    #[comptime] wanted: [bool; 2],
) {
    if CUBE_POS >= cubes {
        terminate!();
    }
    let (rows, columns) = comptime!((config.rows(), config.columns));
    let (each, owns) = comptime!((config.columns / 8, 2 * config.blocks));
    let rule = comptime!(config.rule);
    let [d_k_wanted, d_v_wanted] = comptime!(wanted);
    let mut memory =
        Shared::<[Vector<u32, Const<4>>]>::new_slice(comptime!(config.vectors(Pass::Keys)));
    let mut flags = Shared::<[u32]>::new_slice(FLAGS);
    if UNIT_POS == 0 {
        flags[0] = 0u32;
        flags[1] = 0u32;
    }
    let own_tiles = shared_address(&mut memory);
    let own_size = comptime!(config.offset(config.rows(), 0));
    let tiles_at = own_tiles + comptime!(2 * own_size);
    let size = comptime!(config.offset(config.columns, 0));
    let stage = comptime!(2 * size + 8 * config.columns as u32);

    let tiles = sizes.keys.div_ceil(rows);
    let first = CUBE_POS % tiles * rows;
    let lane = CUBE_POS / tiles;
    let (sequence, key_head) = (lane / sizes.key_heads, lane % sizes.key_heads);
    let keys = rows_of(sequence, key_head, sizes.keys, sizes.key_heads, config.dim);
    let sources = (address(q), address(d_o), address(lse), address(delta));

    let last = (first + rows).min(sizes.keys) - 1;
    let (from, per_head) = queries_of(first, last, &sizes, config);
    let all = per_head * (sizes.heads / sizes.key_heads);

    load(own_tiles, address(k), &keys, first, rows, config);
    load(own_tiles + own_size, address(v), &keys, first, rows, config);
    if all > 0 {
        load_queries(
            tiles_at, 0usize, sources, sequence, key_head, from, per_head, &sizes, config,
        );
    }
    end_group();

    let count = comptime!(2 * config.blocks * config.steps());
    let key_count = comptime!(if d_k_wanted { count } else { 1 });
    let value_count = comptime!(if d_v_wanted { count } else { 1 });
    let mut d_keys = Array::<Vector<f32, Const<4>>>::new(key_count);
    let mut d_values = Array::<Vector<f32, Const<4>>>::new(value_count);
    #[unroll]
    for n in 0..key_count {
        d_keys[n] = Vector::<f32, Const<4>>::new(0.0f32);
    }
    #[unroll]
    for n in 0..value_count {
        d_values[n] = Vector::<f32, Const<4>>::new(0.0f32);
    }
    let mut own_keys = Array::<usize>::new(owns);
    #[unroll]
    for own in 0..owns {
        own_keys[own] = first + own_place(own, config);
    }
    let own_rows = own_tiles
        + UNIT_POS_Y * comptime!(config.offset(16 * config.blocks, 0))
        + own_row(comptime!(config.pitch()));
    let held = Array::<Vector<u32, Const<4>>>::new(comptime!(config.held_vectors()));
    let mut s = Array::<Vector<f32, Const<4>>>::new(comptime!(config.blocks * each));
    let mut d_p = Array::<Vector<f32, Const<4>>>::new(comptime!(config.blocks * each));
    for turn in 0..all {
        let now = tiles_at + (turn % 2) as u32 * stage;
        if turn + 1 < all {
            let next = tiles_at + ((turn + 1) % 2) as u32 * stage;
            load_queries(
                next,
                turn + 1,
                sources,
                sequence,
                key_head,
                from,
                per_head,
                &sizes,
                config,
            );
        }
        end_group();
        wait_for_all_but_one();
        sync_cube();
        let column = (from + turn % per_head) * columns;
        let place = UNIT_POS_X as usize % 4 * 2;
        products(own_rows, &held, now, &mut s, config);
        if comptime!(d_k_wanted) {
            products(own_rows + own_size, &held, now + size, &mut d_p, config);
        }
        let numbers = now + comptime!(2 * size) + (place * 4) as u32;
        #[unroll]
        for n in 0..each {
            #[unroll]
            for right in 0..2usize {
                let own_lse = number_at(numbers + comptime!((n * 8 + right) as u32 * 4)) * LOG2_E;
                let own_delta = if comptime!(d_k_wanted) {
                    number_at(numbers + comptime!((config.columns + n * 8 + right) as u32 * 4))
                } else {
                    0.0f32.runtime()
                };
                #[unroll]
                for own in 0..owns {
                    let (at, i) = comptime!((own / 2 * each + n, own % 2 * 2 + right));
                    let mut product = s[at];
                    let mut d = d_p[at];
                    let (p, own_d) = differentiate(
                        product.extract(i),
                        d.extract(i),
                        own_lse,
                        own_delta,
                        &sizes,
                        config,
                    );
                    product.insert(i, p);
                    d.insert(i, own_d);
                    s[at] = product;
                    d_p[at] = d;
                }
            }
        }
        let end = (column + columns).min(sizes.queries);
        let (first_end, last_start) = tile_ends(column, end, sequence, bounds, &sizes, config);
        // What all queries of the tile see needs no second look at its numbers.
        let hidden = first < last_start || last >= first_end || column + columns > sizes.queries;
        if hidden {
            #[unroll]
            for n in 0..each {
                #[unroll]
                for right in 0..2usize {
                    let query = column + place + comptime!(n * 8 + right);
                    let row = query.min(sizes.queries - 1);
                    let (key_start, key_end) = span(row, sequence, bounds, &sizes, rule);
                    #[unroll]
                    for own in 0..owns {
                        let (at, i) = comptime!((own / 2 * each + n, own % 2 * 2 + right));
                        let key = own_keys[own];
                        let seen = query < sizes.queries && key >= key_start && key < key_end;
                        let (mut p, mut d) = (s[at], d_p[at]);
                        p.insert(i, select(seen, p.extract(i), 0.0f32));
                        d.insert(i, select(seen, d.extract(i), 0.0f32));
                        s[at] = p;
                        d_p[at] = d;
                    }
                }
            }
            if comptime!(rule.positions()) {
                let mask = Mask {
                    column,
                    sequence,
                    by_row: false,
                };
                if comptime!(d_v_wanted) {
                    isolate(
                        now + size,
                        &mut flags,
                        0usize,
                        &mask,
                        &own_keys,
                        &own_keys,
                        bounds,
                        &sizes,
                        &mut d_values,
                        config,
                    );
                }
                if comptime!(d_k_wanted) {
                    isolate(
                        now,
                        &mut flags,
                        1usize,
                        &mask,
                        &own_keys,
                        &own_keys,
                        bounds,
                        &sizes,
                        &mut d_keys,
                        config,
                    );
                }
            }
        }
        if comptime!(d_v_wanted) {
            accumulate(&s, now + size, &mut d_values, config);
        }
        if comptime!(d_k_wanted) {
            accumulate(&d_p, now, &mut d_keys, config);
        }
        sync_cube();
    }
    let mut factors = Array::<f32>::new(owns);
    if comptime!(d_v_wanted) {
        #[unroll]
        for own in 0..owns {
            factors[own] = 1.0f32;
        }
        write(&d_values, &factors, d_v, &keys, first, config);
    }
    if comptime!(d_k_wanted) {
        #[unroll]
        for own in 0..owns {
            factors[own] = sizes.scale;
        }
        write(&d_keys, &factors, d_k, &keys, first, config);
    }
}
