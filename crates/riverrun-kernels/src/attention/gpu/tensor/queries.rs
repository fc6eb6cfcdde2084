//! Backward over the queries: `dq`.

use std::f32::consts::LOG2_E;

use cubecl::prelude::*;

use super::config::{Config, FLAGS, Pass};
use super::isolate::{Mask, isolate};
use super::tile::*;
use crate::attention::gpu::score::{Sizes, score, span};
use crate::gpu::address::address;
use crate::gpu::math::exp2_ptx;

/// From a product, `p` and the gradient of the product without the scale. `lse` is of base 2.
#[cube]
pub(super) fn differentiate(
    product: f32,
    d_p: f32,
    lse: f32,
    delta: f32,
    sizes: &Sizes,
    #[comptime] config: Config,
) -> (f32, f32) {
    if comptime!(config.rule.softcap) {
        let (s, slope) = score(product, sizes, config.rule);
        let p = exp2_ptx(s * LOG2_E - lse);
        (p, p * (d_p - delta) * slope)
    } else {
        let p = weight(product, lse, sizes);
        (p, p * (d_p - delta))
    }
}

/// `p` from a product, without a cap of the scores. `lse` is of base 2.
#[cube]
pub(super) fn weight(product: f32, lse: f32, sizes: &Sizes) -> f32 {
    exp2_ptx(product * (sizes.scale * LOG2_E) - lse)
}

/// `dq`. Cubes: at least one for each tile of queries of each head of each sequence.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn attention_queries_tensor(
    q: &[u32],
    k: &[u32],
    v: &[u32],
    d_o: &[u32],
    bounds: &[u32],
    lse: &[f32],
    delta: &[f32],
    d_q: &mut [u32],
    cubes: usize,
    sizes: Sizes,
    #[comptime] config: Config,
) {
    if CUBE_POS >= cubes {
        terminate!();
    }
    let (rows, columns) = comptime!((config.rows(), config.columns));
    let (each, owns) = comptime!((config.columns / 8, 2 * config.blocks));
    let rule = comptime!(config.rule);
    let mut memory =
        Shared::<[Vector<u32, Const<4>>]>::new_slice(comptime!(config.vectors(Pass::Queries)));
    let mut flags = Shared::<[u32]>::new_slice(FLAGS);
    if UNIT_POS == 0 {
        flags[0] = 0u32;
    }
    let own_tiles = shared_address(&mut memory);
    let own_size = comptime!(config.offset(config.rows(), 0));
    let tiles_at = own_tiles + comptime!(2 * own_size);
    let size = comptime!(config.offset(config.columns, 0));

    let walk = own_walk(bounds, &sizes, config);
    let (first, lane, sequence) = (walk.first, walk.lane, walk.sequence);
    let (from, to) = (walk.from, walk.to);
    let (queries, keys) = (walk.queries, walk.keys);
    let (key_source, value_source) = (address(k), address(v));

    load(own_tiles, address(q), &queries, first, rows, config);
    load(
        own_tiles + own_size,
        address(d_o),
        &queries,
        first,
        rows,
        config,
    );
    if from < to {
        load(tiles_at, key_source, &keys, from * columns, columns, config);
        load(
            tiles_at + size,
            value_source,
            &keys,
            from * columns,
            columns,
            config,
        );
    }
    end_group();

    let mut start = Array::<usize>::new(owns);
    let mut end = Array::<usize>::new(owns);
    let mut lses = Array::<f32>::new(owns);
    let mut deltas = Array::<f32>::new(owns);
    let mut factors = Array::<f32>::new(owns);
    let count = comptime!(2 * config.blocks * config.steps());
    let mut sums = Array::<Vector<f32, Const<4>>>::new(count);
    #[unroll]
    for n in 0..count {
        sums[n] = Vector::<f32, Const<4>>::new(0.0f32);
    }
    #[unroll]
    for own in 0..owns {
        let row = (first + own_place(own, config)).min(sizes.queries - 1);
        let (own_start, own_end) = span(row, sequence, bounds, &sizes, rule);
        start[own] = own_start;
        end[own] = own_end;
        lses[own] = lse[lane * sizes.queries + row] * LOG2_E;
        deltas[own] = delta[lane * sizes.queries + row];
        factors[own] = sizes.scale;
    }
    let own_rows = own_tiles
        + UNIT_POS_Y * comptime!(config.offset(16 * config.blocks, 0))
        + own_row(comptime!(config.pitch()));
    let held = Array::<Vector<u32, Const<4>>>::new(comptime!(config.held_vectors()));
    let mut s = Array::<Vector<f32, Const<4>>>::new(comptime!(config.blocks * each));
    let mut d_p = Array::<Vector<f32, Const<4>>>::new(comptime!(config.blocks * each));
    for block in from..to {
        let column = block * columns;
        let now = tiles_at + ((block - from) % 2) as u32 * comptime!(2 * size);
        if block + 1 < to {
            let next = tiles_at + ((block + 1 - from) % 2) as u32 * comptime!(2 * size);
            load(next, key_source, &keys, column + columns, columns, config);
            load(
                next + size,
                value_source,
                &keys,
                column + columns,
                columns,
                config,
            );
        }
        end_group();
        wait_for_all_but_one();
        sync_cube();
        products(own_rows, &held, now, &mut s, config);
        products(own_rows + own_size, &held, now + size, &mut d_p, config);
        #[unroll]
        for n in 0..comptime!(config.blocks * each) {
            let (product, mut d) = (s[n], d_p[n]);
            #[unroll]
            for i in 0..4usize {
                let own = comptime!(n / each * 2 + i / 2);
                let (_p, own_d) = differentiate(
                    product.extract(i),
                    d.extract(i),
                    lses[own],
                    deltas[own],
                    &sizes,
                    config,
                );
                d.insert(i, own_d);
            }
            d_p[n] = d;
        }
        // What all queries of the tile see needs no second look at its numbers.
        if column < walk.last_start || column + columns > walk.first_end {
            #[unroll]
            for n in 0..comptime!(config.blocks * each) {
                let mut d = d_p[n];
                #[unroll]
                for i in 0..4usize {
                    let own = comptime!(n / each * 2 + i / 2);
                    let key =
                        column + comptime!(n % each * 8 + i % 2) + UNIT_POS_X as usize % 4 * 2;
                    let seen = key >= start[own] && key < end[own];
                    d.insert(i, select(seen, d.extract(i), 0.0f32));
                }
                d_p[n] = d;
            }
            if comptime!(rule.positions()) {
                let mask = Mask {
                    column,
                    sequence,
                    by_row: true,
                };
                isolate(
                    now, &mut flags, 0usize, &mask, &start, &end, bounds, &sizes, &mut sums, config,
                );
            }
        }
        accumulate(&d_p, now, &mut sums, config);
        sync_cube();
    }
    write(&sums, &factors, d_q, &queries, first, config);
}
