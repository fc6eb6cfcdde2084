//! Forward: a plane carries the softmax of its rows along the keys.

use std::f32::consts::{LN_2, LOG2_E};

use cubecl::prelude::*;

use super::config::{Config, FLAGS, Pass};
use super::isolate::{Mask, isolate};
use super::tile::*;
use crate::attention::gpu::score::{Sizes, score, span};
use crate::gpu::address::address;
use crate::gpu::full_plane::shuffle_xor;
use crate::gpu::math::exp2_ptx;

/// Cubes: at least one for each tile of queries of each head of each sequence.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn attention_forward_tensor(
    q: &[u32],
    k: &[u32],
    v: &[u32],
    bounds: &[u32],
    o: &mut [u32],
    lse: &mut [f32],
    cubes: usize,
    sizes: Sizes,
    #[comptime] config: Config,
) {
    if CUBE_POS >= cubes {
        terminate!();
    }
    let (rows, columns, steps) = comptime!((config.rows(), config.columns, config.steps()));
    let (each, owns) = comptime!((config.columns / 8, 2 * config.blocks));
    let rule = comptime!(config.rule);
    let mut memory =
        Shared::<[Vector<u32, Const<4>>]>::new_slice(comptime!(config.vectors(Pass::Forward)));
    let mut flags = Shared::<[u32]>::new_slice(FLAGS);
    if UNIT_POS == 0 {
        flags[0] = 0u32;
    }
    let own_tile = shared_address(&mut memory);
    let tiles_at = own_tile + comptime!(config.offset(rows, 0));
    let size = comptime!(config.offset(config.columns, 0));

    let walk = own_walk(bounds, &sizes, config);
    let (first, lane, sequence) = (walk.first, walk.lane, walk.sequence);
    let (from, to) = (walk.from, walk.to);
    let (queries, keys) = (walk.queries, walk.keys);
    let (key_source, value_source) = (address(k), address(v));

    load(own_tile, address(q), &queries, first, rows, config);
    end_group();
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
    let mut top = Array::<f32>::new(owns);
    let mut total = Array::<f32>::new(owns);
    let count = comptime!(2 * config.blocks * steps);
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
        top[own] = f32::cast_from(f32::MIN);
        total[own] = 0.0f32;
    }
    let own_rows = own_tile
        + UNIT_POS_Y * comptime!(config.offset(16 * config.blocks, 0))
        + own_row(comptime!(config.pitch()));
    wait_for_all_but_one();
    sync_cube();
    let mut held = Array::<Vector<u32, Const<4>>>::new(comptime!(config.held_vectors()));
    if comptime!(config.held) {
        hold(own_rows, &mut held, config);
    }
    let nothing = f32::reinterpret(0xff80_0000u32);
    let factor = sizes.scale * LOG2_E;
    let mut s = Array::<Vector<f32, Const<4>>>::new(comptime!(config.blocks * each));
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
        // What all queries of the tile see needs no second look at its numbers.
        let hidden = column < walk.last_start || column + columns > walk.first_end;
        #[unroll]
        for n in 0..comptime!(config.blocks * each) {
            if comptime!(rule.softcap) {
                let product = s[n];
                let mut scores = Vector::<f32, Const<4>>::new(0.0f32);
                #[unroll]
                for i in 0..4usize {
                    let (x, _slope) = score(product.extract(i), &sizes, rule);
                    scores.insert(i, x * LOG2_E);
                }
                s[n] = scores;
            } else {
                s[n] *= Vector::<f32, Const<4>>::new(factor);
            }
        }
        if hidden {
            #[unroll]
            for n in 0..comptime!(config.blocks * each) {
                let mut scores = s[n];
                #[unroll]
                for i in 0..4usize {
                    let own = comptime!(n / each * 2 + i / 2);
                    let key =
                        column + comptime!(n % each * 8 + i % 2) + UNIT_POS_X as usize % 4 * 2;
                    let seen = key >= start[own] && key < end[own];
                    scores.insert(i, select(seen, scores.extract(i), nothing));
                }
                s[n] = scores;
            }
        }
        #[unroll]
        for own in 0..owns {
            let (b, x, y) = comptime!((own / 2, own % 2 * 2, own % 2 * 2 + 1));
            let mut highest = top[own];
            #[unroll]
            for n in 0..each {
                let scores = s[comptime!(b * each + n)];
                highest = highest.max(scores.extract(x).max(scores.extract(y)));
            }
            highest = highest.max(shuffle_xor(highest, 1u32));
            highest = highest.max(shuffle_xor(highest, 2u32));
            let factor = exp2_ptx(top[own] - highest);
            top[own] = highest;
            let mut sum = total[own] * factor;
            #[unroll]
            for n in 0..each {
                let at = comptime!(b * each + n);
                let mut scores = s[at];
                let p = exp2_ptx(scores.extract(x) - highest);
                let r = exp2_ptx(scores.extract(y) - highest);
                scores.insert(x, p);
                scores.insert(y, r);
                s[at] = scores;
                sum += p + r;
            }
            total[own] = sum;
            #[unroll]
            for n in 0..comptime!(2 * steps) {
                let at = comptime!(b * 2 * steps + n);
                let mut values = sums[at];
                values.insert(x, values.extract(x) * factor);
                values.insert(y, values.extract(y) * factor);
                sums[at] = values;
            }
        }
        if comptime!(rule.positions()) {
            if hidden {
                let mask = Mask {
                    column,
                    sequence,
                    by_row: true,
                };
                isolate(
                    now + size,
                    &mut flags,
                    0usize,
                    &mask,
                    &start,
                    &end,
                    bounds,
                    &sizes,
                    &mut sums,
                    config,
                );
            }
        }
        accumulate(&s, now + size, &mut sums, config);
        sync_cube();
    }
    let mut factors = Array::<f32>::new(owns);
    #[unroll]
    for own in 0..owns {
        let mut all = total[own];
        all += shuffle_xor(all, 1u32);
        all += shuffle_xor(all, 2u32);
        factors[own] = select(start[own] < end[own], 1.0f32 / all, 0.0f32);
        let row = first + own_place(own, config);
        if UNIT_POS_X % 4 == 0 && row < sizes.queries {
            lse[lane * sizes.queries + row] = top[own] * LN_2 + all.ln();
        }
    }
    write(&sums, &factors, o, &queries, first, config);
}
