//! `dq`: the sums of a tile run while the scores of the next one are computed.

use std::f32::consts::LOG2_E;

use cubecl::prelude::*;

use super::tile::*;
use crate::attention::gpu::score::{Sizes, span};
use crate::attention::gpu::tensor::config::{Config, FLAGS, Pass};
use crate::attention::gpu::tensor::queries::differentiate;
use crate::attention::gpu::tensor::tile::{load, own_place, own_walk};
use crate::gpu::address::address;
use crate::gpu::tensor::{end_group, shared_address};
use crate::gpu::warpgroup::first_panel;

/// The thread's two rows.
#[derive(CubeType)]
struct Own {
    /// The keys that they see.
    start: Array<usize>,
    end: Array<usize>,
    /// In base 2.
    lse: Array<f32>,
    delta: Array<f32>,
}

/// From the products of a tile to the gradients of the scores, without the scale.
#[cube]
fn differentiate_tile(
    s: &Array<Sums>,
    d_p: &mut Array<Sums>,
    rows: &Own,
    column: usize,
    hidden: bool,
    sizes: &Sizes,
    #[comptime] config: Config,
) {
    let each = comptime!(config.columns / 8);
    #[unroll]
    for n in 0..each {
        let product = s[n];
        let mut d = d_p[n];
        #[unroll]
        for i in 0..4usize {
            let own = comptime!(i / 2);
            let (_p, own_d) = differentiate(
                product.extract(i),
                d.extract(i),
                rows.lse[own],
                rows.delta[own],
                sizes,
                config,
            );
            d.insert(i, own_d);
        }
        d_p[n] = d;
    }
    if hidden {
        #[unroll]
        for n in 0..each {
            let mut d = d_p[n];
            #[unroll]
            for i in 0..4usize {
                let own = comptime!(i / 2);
                let key = column + comptime!(n * 8 + i % 2) + UNIT_POS_X as usize % 4 * 2;
                let seen = key >= rows.start[own] && key < rows.end[own];
                d.insert(i, select(seen, d.extract(i), 0.0f32));
            }
            d_p[n] = d;
        }
    }
}

/// Cubes: at least one for each tile of queries of each head of each sequence.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(in crate::attention::gpu::tensor) fn attention_queries_groups(
    q: &[u32],
    k: &[u32],
    v: &[u32],
    d_o: &[u32],
    bounds: &[u32],
    lse: &[f32],
    delta: &[f32],
    d_q: &mut [Vector<u32, Const<4>>],
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
        Shared::<[Vector<u32, Const<4>>]>::new_slice(comptime!(config.vectors(Pass::Queries)));
    let mut flags = Shared::<[u32]>::new_slice(FLAGS);
    if UNIT_POS == 0 {
        flags[0] = 0u32;
    }
    let size = comptime!(config.bytes(columns));
    let own_tile = first_panel(shared_address(&mut memory));
    let gradient_tile = own_tile + comptime!(config.bytes(rows));
    let tiles_at = gradient_tile + comptime!(config.bytes(rows));

    let walk = own_walk(bounds, &sizes, config);
    let (first, lane, sequence) = (walk.first, walk.lane, walk.sequence);
    let (from, to) = (walk.from, walk.to);
    let (queries, keys) = (walk.queries, walk.keys);
    let (key_source, value_source) = (address(k), address(v));

    load(own_tile, address(q), &queries, first, rows, config);
    load(gradient_tile, address(d_o), &queries, first, rows, config);
    if from < to {
        let column = from * columns;
        load(tiles_at, key_source, &keys, column, columns, config);
        load(
            tiles_at + size,
            value_source,
            &keys,
            column,
            columns,
            config,
        );
    }
    end_group();

    let mut own_rows = Own {
        start: Array::<usize>::new(2usize),
        end: Array::<usize>::new(2usize),
        lse: Array::<f32>::new(2usize),
        delta: Array::<f32>::new(2usize),
    };
    let mut factors = Array::<f32>::new(2usize);
    #[unroll]
    for own in 0..2usize {
        let row = (first + own_place(own, config)).min(sizes.queries - 1);
        let (own_start, own_end) = span(row, sequence, bounds, &sizes, rule);
        own_rows.start[own] = own_start;
        own_rows.end[own] = own_end;
        own_rows.lse[own] = lse[lane * sizes.queries + row] * LOG2_E;
        own_rows.delta[own] = delta[lane * sizes.queries + row];
        factors[own] = sizes.scale;
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
        let mut gradients = Array::<Words>::new(steps);
        hold(own_tile, &mut held, config);
        hold(gradient_tile, &mut gradients, config);
        let mut s = Array::<Sums>::new(each);
        let mut d_p = Array::<Sums>::new(each);
        let mut d_s = Array::<Words>::new(comptime!(columns / 16));
        begin_products(&held, tiles_at, &mut s, config);
        begin_products(&gradients, tiles_at + size, &mut d_p, config);
        if from + 1 < to {
            let (next, column) = (tiles_at + comptime!(2 * size), (from + 1) * columns);
            load(next, key_source, &keys, column, columns, config);
            load(next + size, value_source, &keys, column, columns, config);
        }
        end_group();
        let column = from * columns;
        // What all queries of the tile see needs no second look at its numbers.
        let mut hidden = column < walk.last_start || column + columns > walk.first_end;
        finish(&mut s, columns, 1usize);
        finish(&mut d_p, columns, 0usize);
        differentiate_tile(&s, &mut d_p, &own_rows, column, hidden, &sizes, config);
        round(&d_p, &mut d_s, config);
        meet();
        for block in from + 1..to {
            let column = block * columns;
            let turn = block - from;
            let before = tiles_at + ((turn - 1) % 3) as u32 * comptime!(2 * size);
            let now = tiles_at + (turn % 3) as u32 * comptime!(2 * size);
            isolate_keys(
                before,
                column - columns,
                hidden,
                sequence,
                (&own_rows.start, &own_rows.end),
                &mut flags,
                bounds,
                &sizes,
                &mut sums,
                config,
            );
            begin_products(&held, now, &mut s, config);
            begin_products(&gradients, now + size, &mut d_p, config);
            begin_sums(&d_s, before, &mut sums, config);
            if block + 1 < to {
                let next = tiles_at + ((turn + 1) % 3) as u32 * comptime!(2 * size);
                let further = column + columns;
                load(next, key_source, &keys, further, columns, config);
                load(next + size, value_source, &keys, further, columns, config);
            }
            end_group();
            hidden = column < walk.last_start || column + columns > walk.first_end;
            finish(&mut s, columns, 2usize);
            finish(&mut d_p, columns, 1usize);
            differentiate_tile(&s, &mut d_p, &own_rows, column, hidden, &sizes, config);
            finish(&mut sums, comptime!(16 * steps), 0usize);
            round(&d_p, &mut d_s, config);
            meet();
        }
        let tile = tiles_at + ((to - 1 - from) % 3) as u32 * comptime!(2 * size);
        isolate_keys(
            tile,
            (to - 1) * columns,
            hidden,
            sequence,
            (&own_rows.start, &own_rows.end),
            &mut flags,
            bounds,
            &sizes,
            &mut sums,
            config,
        );
        begin_sums(&d_s, tile, &mut sums, config);
        finish(&mut sums, comptime!(16 * steps), 0usize);
    }
    write(&sums, &factors, d_q, &queries, first, own_tile, config);
}
