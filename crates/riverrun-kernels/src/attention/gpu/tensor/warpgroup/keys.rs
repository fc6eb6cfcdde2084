//! `dk` and `dv`. The cube's keys and values are read from shared memory: registers hold both sums.

use std::f32::consts::LOG2_E;

use cubecl::prelude::*;

use super::tile::*;
use crate::attention::gpu::score::{Sizes, rows_of, span};
use crate::attention::gpu::tensor::config::{Config, FLAGS, Pass};
use crate::attention::gpu::tensor::isolate::{Mask, isolate};
use crate::attention::gpu::tensor::keys::{load_queries, queries_of};
use crate::attention::gpu::tensor::queries::{differentiate, weight};
use crate::attention::gpu::tensor::tile::{load, own_place, tile_ends};
use crate::gpu::address::address;
use crate::gpu::tensor::{end_group, numbers_at, shared_address};
use crate::gpu::warpgroup::{ROW, first_panel, multiply_tiles};

/// Begins the products of the group's 64 rows of a tile and the rows of another.
#[cube]
fn begin_products_of(own: u32, tile: u32, out: &mut Array<Sums>, #[comptime] config: Config) {
    let (product, steps) = comptime!((along_channels(&config), steps_along_channels(&config)));
    let rows = own + UNIT_POS_Y / 4 * comptime!(64 * ROW as u32);
    multiply_tiles(rows, tile, out, steps, product);
}

/// Zeros for the queries from `query` on that do not see the thread's keys.
#[cube]
fn hide(
    x: &mut Array<Sums>,
    own_keys: &Array<usize>,
    query: usize,
    sequence: usize,
    bounds: &[u32],
    sizes: &Sizes,
    #[comptime] config: Config,
) {
    #[unroll]
    for n in 0..comptime!(config.columns / 8) {
        let mut numbers = x[n];
        #[unroll]
        for right in 0..2usize {
            let at = query + comptime!(n * 8 + right);
            let row = at.min(sizes.queries - 1);
            let (start, end) = span(row, sequence, bounds, sizes, config.rule);
            #[unroll]
            for own in 0..2usize {
                let i = comptime!(own * 2 + right);
                let key = own_keys[own];
                let seen = at < sizes.queries && key >= start && key < end;
                numbers.insert(i, select(seen, numbers.extract(i), 0.0f32));
            }
        }
        x[n] = numbers;
    }
}

/// Cubes: at least one for each tile of keys of each key head of each sequence.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(in crate::attention::gpu::tensor) fn attention_keys_groups(
    q: &[u32],
    k: &[u32],
    v: &[u32],
    d_o: &[u32],
    bounds: &[u32],
    lse: &[f32],
    delta: &[f32],
    d_k: &mut [Vector<u32, Const<4>>],
    d_v: &mut [Vector<u32, Const<4>>],
    cubes: usize,
    sizes: Sizes,
    #[comptime] config: Config,
) {
    if CUBE_POS >= cubes {
        terminate!();
    }
    let (rows, columns, steps) = comptime!((config.rows(), config.columns, config.steps()));
    let each = comptime!(columns / 8);
    let rule = comptime!(config.rule);
    let mut memory =
        Shared::<[Vector<u32, Const<4>>]>::new_slice(comptime!(config.vectors(Pass::Keys)));
    let mut flags = Shared::<[u32]>::new_slice(FLAGS);
    if UNIT_POS == 0 {
        flags[0] = 0u32;
        flags[1] = 0u32;
    }
    let size = comptime!(config.bytes(columns));
    let stage = comptime!(config.bytes_of_queries());
    let key_tile = first_panel(shared_address(&mut memory));
    let value_tile = key_tile + comptime!(config.bytes(rows));
    let tiles_at = value_tile + comptime!(config.bytes(rows));

    let tiles = sizes.keys.div_ceil(rows);
    let first = CUBE_POS % tiles * rows;
    let lane = CUBE_POS / tiles;
    let (sequence, key_head) = (lane / sizes.key_heads, lane % sizes.key_heads);
    let keys = rows_of(sequence, key_head, sizes.keys, sizes.key_heads, config.dim);
    let sources = (address(q), address(d_o), address(lse), address(delta));
    let last = (first + rows).min(sizes.keys) - 1;
    let (from, per_head) = queries_of(first, last, &sizes, config);
    let all = per_head * (sizes.heads / sizes.key_heads);

    load(key_tile, address(k), &keys, first, rows, config);
    load(value_tile, address(v), &keys, first, rows, config);
    if all > 0 {
        load_queries(
            tiles_at, 0usize, sources, sequence, key_head, from, per_head, &sizes, config,
        );
    }
    end_group();

    let count = comptime!(2 * steps);
    let mut d_keys = Array::<Sums>::new(count);
    let mut d_values = Array::<Sums>::new(count);
    #[unroll]
    for n in 0..count {
        d_keys[n] = Sums::new(0.0f32);
        d_values[n] = Sums::new(0.0f32);
    }
    let mut own_keys = Array::<usize>::new(2usize);
    #[unroll]
    for own in 0..2usize {
        own_keys[own] = first + own_place(own, config);
    }
    let mut s = Array::<Sums>::new(each);
    let mut d_p = Array::<Sums>::new(each);
    let mut p = Array::<Words>::new(comptime!(columns / 16));
    let mut d_s = Array::<Words>::new(comptime!(columns / 16));
    meet();
    for turn in 0..all {
        let now = tiles_at + (turn % 2) as u32 * stage;
        begin_products_of(key_tile, now, &mut s, config);
        begin_products_of(value_tile, now + size, &mut d_p, config);
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
        let column = (from + turn % per_head) * columns;
        let place = UNIT_POS_X as usize % 4 * 2;
        let numbers = now + comptime!(2 * size) + (place * 4) as u32;
        let end = (column + columns).min(sizes.queries);
        let (first_end, last_start) = tile_ends(column, end, sequence, bounds, &sizes, config);
        // What all queries of the tile see needs no second look at its numbers.
        let hidden = first < last_start || last >= first_end || column + columns > sizes.queries;
        finish(&mut s, columns, 1usize);
        if comptime!(rule.softcap) {
            // The slope needs the product.
            finish(&mut d_p, columns, 0usize);
        }
        #[unroll]
        for n in 0..each {
            let lses = numbers_at(numbers + comptime!(n as u32 * 32)) * Vector::new(LOG2_E);
            let mut product = s[n];
            if comptime!(rule.softcap) {
                let deltas = numbers_at(numbers + comptime!((columns + n * 8) as u32 * 4));
                let mut d = d_p[n];
                #[unroll]
                for i in 0..4usize {
                    let right = comptime!(i % 2);
                    let (own_p, own_d) = differentiate(
                        product.extract(i),
                        d.extract(i),
                        lses.extract(right),
                        deltas.extract(right),
                        &sizes,
                        config,
                    );
                    product.insert(i, own_p);
                    d.insert(i, own_d);
                }
                d_p[n] = d;
            } else {
                #[unroll]
                for i in 0..4usize {
                    let own_lse = lses.extract(comptime!(i % 2));
                    product.insert(i, weight(product.extract(i), own_lse, &sizes));
                }
            }
            s[n] = product;
        }
        if hidden {
            hide(
                &mut s,
                &own_keys,
                column + place,
                sequence,
                bounds,
                &sizes,
                config,
            );
            if comptime!(rule.positions()) {
                if comptime!(!rule.softcap) {
                    finish(&mut d_p, columns, 0usize);
                }
                let mask = Mask {
                    column,
                    sequence,
                    by_row: false,
                };
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
        round(&s, &mut p, config);
        begin_sums(&p, now + size, &mut d_values, config);
        if comptime!(!rule.softcap) {
            finish(&mut d_p, columns, 1usize);
            #[unroll]
            for n in 0..each {
                let deltas = numbers_at(numbers + comptime!((columns + n * 8) as u32 * 4));
                let mut d = d_p[n];
                #[unroll]
                for i in 0..4usize {
                    let own_d = d.extract(i) - deltas.extract(comptime!(i % 2));
                    d.insert(i, s[n].extract(i) * own_d);
                }
                d_p[n] = d;
            }
        }
        if hidden {
            hide(
                &mut d_p,
                &own_keys,
                column + place,
                sequence,
                bounds,
                &sizes,
                config,
            );
        }
        round(&d_p, &mut d_s, config);
        begin_sums(&d_s, now, &mut d_keys, config);
        finish(&mut d_values, comptime!(16 * steps), 1usize);
        finish(&mut d_keys, comptime!(16 * steps), 0usize);
        meet();
    }
    let mut factors = Array::<f32>::new(2usize);
    #[unroll]
    for own in 0..2usize {
        factors[own] = 1.0f32;
    }
    write(&d_values, &factors, d_v, &keys, first, value_tile, config);
    #[unroll]
    for own in 0..2usize {
        factors[own] = sizes.scale;
    }
    write(&d_keys, &factors, d_k, &keys, first, key_tile, config);
}
