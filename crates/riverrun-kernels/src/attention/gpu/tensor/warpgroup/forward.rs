//! Forward: the scores of a tile are computed while the weights of the one before are multiplied with its values.

use std::f32::consts::{LN_2, LOG2_E};

use cubecl::prelude::*;

use super::tile::*;
use crate::attention::gpu::score::{Sizes, score, span};
use crate::attention::gpu::tensor::config::{Config, FLAGS, Pass};
use crate::attention::gpu::tensor::tile::{load, own_place, own_walk};
use crate::gpu::address::address;
use crate::gpu::full_plane::shuffle_xor;
use crate::gpu::math::exp2_ptx;
use crate::gpu::tensor::{end_group, shared_address};
use crate::gpu::warpgroup::first_panel;

/// The softmax of the plane's rows so far; two rows to a thread.
#[derive(CubeType)]
struct Carried {
    /// The keys that the rows see.
    start: Array<usize>,
    end: Array<usize>,
    /// The largest score, times `log2 e`.
    top: Array<f32>,
    /// The thread's part of the sum of the weights.
    total: Array<f32>,
    /// What all sums so far are to be multiplied with.
    shrink: Array<f32>,
}

/// From the products of a tile to weights.
#[cube]
fn weigh(
    s: &mut Array<Sums>,
    carried: &mut Carried,
    column: usize,
    hidden: bool,
    sizes: &Sizes,
    #[comptime] config: Config,
) {
    let (each, rule) = comptime!((config.columns / 8, config.rule));
    let factor = if comptime!(rule.softcap) {
        f32::cast_from(LOG2_E)
    } else {
        sizes.scale * LOG2_E
    };
    if comptime!(rule.softcap) {
        #[unroll]
        for n in 0..each {
            let mut scores = s[n];
            #[unroll]
            for i in 0..4usize {
                let (x, _slope) = score(scores.extract(i), sizes, rule);
                scores.insert(i, x);
            }
            s[n] = scores;
        }
    }
    if hidden {
        let nothing = f32::reinterpret(0xff80_0000u32);
        #[unroll]
        for n in 0..each {
            let mut scores = s[n];
            #[unroll]
            for i in 0..4usize {
                let own = comptime!(i / 2);
                let key = column + comptime!(n * 8 + i % 2) + UNIT_POS_X as usize % 4 * 2;
                let seen = key >= carried.start[own] && key < carried.end[own];
                scores.insert(i, select(seen, scores.extract(i), nothing));
            }
            s[n] = scores;
        }
    }
    #[unroll]
    for own in 0..2usize {
        let (x, y) = comptime!((own * 2, own * 2 + 1));
        let before = carried.top[own];
        let mut highest = f32::reinterpret(0xff80_0000u32);
        #[unroll]
        for n in 0..each {
            highest = highest.max(s[n].extract(x).max(s[n].extract(y)));
        }
        highest = highest.max(shuffle_xor(highest, 1u32));
        highest = highest.max(shuffle_xor(highest, 2u32));
        let top = before.max(highest * factor);
        let least = 0.0f32 - top;
        let shrink = exp2_ptx(before - top);
        carried.top[own] = top;
        carried.shrink[own] = shrink;
        let mut sum = carried.total[own] * shrink;
        #[unroll]
        for n in 0..each {
            let mut scores = s[n];
            let p = exp2_ptx(fma(scores.extract(x), factor, least));
            let r = exp2_ptx(fma(scores.extract(y), factor, least));
            scores.insert(x, p);
            scores.insert(y, r);
            s[n] = scores;
            sum += p + r;
        }
        carried.total[own] = sum;
    }
}

/// Cubes: at least one for each tile of queries of each head of each sequence.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(in crate::attention::gpu::tensor) fn attention_forward_groups(
    q: &[u32],
    k: &[u32],
    v: &[u32],
    bounds: &[u32],
    o: &mut [Vector<u32, Const<4>>],
    lse: &mut [f32],
    cubes: usize,
    sizes: Sizes,
    #[comptime] config: Config,
) {
    if CUBE_POS >= cubes {
        terminate!();
    }
    let (rows, columns, steps) = comptime!((config.rows(), config.columns, config.steps()));
    let rule = comptime!(config.rule);
    let mut memory =
        Shared::<[Vector<u32, Const<4>>]>::new_slice(comptime!(config.vectors(Pass::Forward)));
    let mut flags = Shared::<[u32]>::new_slice(FLAGS);
    if UNIT_POS == 0 {
        flags[0] = 0u32;
    }
    let size = comptime!(config.bytes(columns));
    let own_tile = first_panel(shared_address(&mut memory));
    let keys_at = own_tile + comptime!(config.bytes(rows));
    let values_at = keys_at + comptime!(2 * size);

    let walk = own_walk(bounds, &sizes, config);
    let (first, lane, sequence) = (walk.first, walk.lane, walk.sequence);
    let (from, to) = (walk.from, walk.to);
    let (queries, keys) = (walk.queries, walk.keys);
    let (key_source, value_source) = (address(k), address(v));

    load(own_tile, address(q), &queries, first, rows, config);
    if from < to {
        let column = from * columns;
        load(keys_at, key_source, &keys, column, columns, config);
        load(values_at, value_source, &keys, column, columns, config);
    }
    end_group();

    let mut carried = Carried {
        start: Array::<usize>::new(2usize),
        end: Array::<usize>::new(2usize),
        top: Array::<f32>::new(2usize),
        total: Array::<f32>::new(2usize),
        shrink: Array::<f32>::new(2usize),
    };
    #[unroll]
    for own in 0..2usize {
        let row = (first + own_place(own, config)).min(sizes.queries - 1);
        let (own_start, own_end) = span(row, sequence, bounds, &sizes, rule);
        carried.start[own] = own_start;
        carried.end[own] = own_end;
        carried.top[own] = f32::cast_from(f32::MIN);
        carried.total[own] = 0.0f32;
        carried.shrink[own] = 1.0f32;
    }
    let count = comptime!(2 * steps);
    let mut sums = Array::<Sums>::new(count);
    #[unroll]
    for n in 0..count {
        sums[n] = Sums::new(0.0f32);
    }
    meet();
    if from < to {
        let mut held = Array::<Words>::new(steps);
        hold(own_tile, &mut held, config);
        let mut s = Array::<Sums>::new(comptime!(columns / 8));
        let mut weights = Array::<Words>::new(comptime!(columns / 16));
        begin_products(&held, keys_at, &mut s, config);
        if from + 1 < to {
            let column = (from + 1) * columns;
            load(keys_at + size, key_source, &keys, column, columns, config);
        }
        end_group();
        finish(&mut s, columns, 0usize);
        let column = from * columns;
        let mut hidden = column < walk.last_start || column + columns > walk.first_end;
        weigh(&mut s, &mut carried, column, hidden, &sizes, config);
        round(&s, &mut weights, config);
        meet();
        for block in from + 1..to {
            let column = block * columns;
            let turn = ((block - from) % 2) as u32 * size;
            let other = size - turn;
            isolate_keys(
                values_at + other,
                column - columns,
                hidden,
                sequence,
                (&carried.start, &carried.end),
                &mut flags,
                bounds,
                &sizes,
                &mut sums,
                config,
            );
            begin_products(&held, keys_at + turn, &mut s, config);
            begin_sums(&weights, values_at + other, &mut sums, config);
            if block + 1 < to {
                let next = column + columns;
                load(keys_at + other, key_source, &keys, next, columns, config);
            }
            load(
                values_at + turn,
                value_source,
                &keys,
                column,
                columns,
                config,
            );
            end_group();
            finish(&mut s, columns, 1usize);
            // What all queries of the tile see needs no second look at its numbers.
            hidden = column < walk.last_start || column + columns > walk.first_end;
            weigh(&mut s, &mut carried, column, hidden, &sizes, config);
            finish(&mut sums, comptime!(16 * steps), 0usize);
            round(&s, &mut weights, config);
            #[unroll]
            for n in 0..count {
                let mut values = sums[n];
                #[unroll]
                for i in 0..4usize {
                    values.insert(i, values.extract(i) * carried.shrink[comptime!(i / 2)]);
                }
                sums[n] = values;
            }
            meet();
        }
        let values = values_at + ((to - 1 - from) % 2) as u32 * size;
        isolate_keys(
            values,
            (to - 1) * columns,
            hidden,
            sequence,
            (&carried.start, &carried.end),
            &mut flags,
            bounds,
            &sizes,
            &mut sums,
            config,
        );
        begin_sums(&weights, values, &mut sums, config);
        finish(&mut sums, comptime!(16 * steps), 0usize);
    }
    let mut factors = Array::<f32>::new(2usize);
    #[unroll]
    for own in 0..2usize {
        let mut all = carried.total[own];
        all += shuffle_xor(all, 1u32);
        all += shuffle_xor(all, 2u32);
        let sees = carried.start[own] < carried.end[own];
        factors[own] = select(sees, 1.0f32 / all, 0.0f32);
        let row = first + own_place(own, config);
        if UNIT_POS_X % 4 == 0 && row < sizes.queries {
            lse[lane * sizes.queries + row] = carried.top[own] * LN_2 + all.ln();
        }
    }
    write(&sums, &factors, o, &queries, first, own_tile, config);
}
