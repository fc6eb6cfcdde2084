//! Backward along the chunks, last to first: a plane carries the gradient of 16 columns of a state in registers, transposed.
//!
//! ```text
//! dU = Pᵀ dO + e^(G_C - G) K D       dR = Tᵀ dU       dV = β dR
//! D ← e^(G_C) D + (e^G Q)ᵀ dO - (β e^G K)ᵀ dR
//! ```
//!
//! Without an erase `dV = dU`, and the last term is not there. Where the erase has vectors of its own, `dU` is that of what is written
//! along `b`, and
//!
//! ```text
//! dV = P'ᵀ dO + (e^(G_C - G) K) D + Mᵀ dR       D ← e^(G_C) D + (e^G Q)ᵀ dO + (e^G' a)ᵀ dR
//! ```

use cubecl::prelude::*;

use super::Form;
use super::columns::*;
use super::loads::*;
use super::product::*;
use super::results::*;
use super::scores::Sizes;
use super::stage::*;
use super::tile::*;
use crate::gpu::tensor::*;

/// A cube takes some columns of a segment of a head, 16 to a plane, as in [`walk`].
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn pass_backward(
    inputs: PassInputs,
    d_o: &[u32],
    d_last: &[f32],
    d_v: &mut [Words],
    d_states: &mut [Words],
    d_r: &mut [Words],
    d_initial: &mut [f32],
    sizes: Sizes,
    #[comptime] form: Form,
    #[comptime] ends: bool,
) {
    if CUBE_POS >= sizes.cubes {
        terminate!();
    }
    let bytes = comptime!(form.of_pass(true));
    let mut memory = Shared::<[Words]>::new_slice(comptime!(form.vectors(bytes)));
    let start = first_tile(shared_address(&mut memory), form);
    let sources = sources(&inputs, d_o);
    walk(
        start, &sources, d_last, d_v, d_states, d_r, d_initial, CUBE_POS, &sizes, form, ends,
    );
}

/// What cube `cube` does, with tiles from `start` on. `d_last`: the gradient of the state after every segment; `d_states`: that
/// after every chunk, `[.., V, K]`; `d_r`: `dR`, `[.., V, CHUNK]`. With `ends` it writes only the gradient of the state before the
/// segment.
#[cube]
pub(super) fn walk(
    start: u32,
    sources: &Sources,
    d_last: &[f32],
    d_v: &mut [Words],
    d_states: &mut [Words],
    d_r: &mut [Words],
    d_initial: &mut [f32],
    cube: usize,
    sizes: &Sizes,
    #[comptime] form: Form,
    #[comptime] ends: bool,
) {
    let (key, value, storage) = comptime!((form.key, form.value, form.storage));
    let stage = comptime!(Stage::new(form, true));
    let tiles = comptime!(value / (16 * form.planes));
    let (piece, tile) = (cube / tiles, cube % tiles);
    let (lane, segment) = (piece / sizes.segments, piece % sizes.segments);
    let (sequence, head) = (lane / sizes.heads, lane % sizes.heads);
    let column = tile * comptime!(16 * form.planes);
    let own = column + UNIT_POS_Y as usize * 16;
    let chunks = sizes.steps.div_ceil(CHUNK);
    let own_memory =
        start + comptime!(form.stages() * stage.bytes) + UNIT_POS_Y * comptime!(form.of_plane());
    let first = segment * sizes.segment;
    let path = Path {
        lane,
        column,
        first,
        count: sizes.segment.min(chunks - first),
        start,
        backward: true,
        stage,
    };
    if comptime!(form.loaders) && UNIT_POS_Y >= comptime!(form.planes as u32) {
        load_all(&path, sources, sizes, true, form);
        terminate!();
    }

    let state_at = piece * comptime!(key * value) + own;
    let mut d = Array::<Sums>::new(comptime!(key / 8));
    read_state(&mut d, d_last, state_at, form.state, form);
    let depth = comptime!(key / 16);
    let steps = comptime!(CHUNK / 16);
    let of_state = comptime!(form.of_state());
    let of_chunk = comptime!(form.of_chunk(true));
    let to_state = comptime!(form.to_state());

    let mut held = Array::<Words>::new(depth);
    let mut given = Array::<Words>::new(steps);
    let mut words = Array::<Words>::new(steps);
    let mut met = Array::<Words>::new(steps);
    let mut d_u = Array::<Sums>::new(comptime!(2 * steps));
    let mut r = Array::<Sums>::new(comptime!(2 * steps));
    load_first(&path, sources, sizes, true, form);
    for n in 0..path.count {
        let chunk = chunk_of(&path, n);
        let now = stage_of(&path, n, form);
        wait_for_chunk(form);
        #[unroll]
        for step in 0..depth {
            held[step] = operand(d[comptime!(2 * step)], d[comptime!(2 * step + 1)], storage);
        }
        let place = lane * chunks + chunk;
        begin(&held, now + stage.ends, &mut d_u, of_state, false);
        if comptime!(!ends) {
            let rows = columns_of(place, own, key, form);
            write_operands(&held, d_states, &rows, own_memory, key, true, form);
        }
        // While the product runs.
        load_next(&path, n, sources, sizes, true, form);
        let scalars_at = now + stage.scalars;
        let own_values =
            now + stage.values + UNIT_POS_Y * 32 + own_column(comptime!(pitch(16 * form.planes)));
        #[unroll]
        for step in 0..steps {
            given[step] =
                blocks_transposed(own_values + comptime!(offset(16 * form.planes, 16 * step, 0)));
        }
        settle(&mut d_u, of_state, 0usize);
        if comptime!(form.gate) {
            #[unroll]
            for n in 0..comptime!(2 * steps) {
                d_u[n] *= of_steps(scalars_at, 3usize, n);
            }
        }
        multiply(&given, now + stage.scores, &mut d_u, of_chunk);
        // The gradients of the outputs, as the queries read.
        let mut read = Array::<Words>::new(steps);
        #[unroll]
        for step in 0..steps {
            read[step] = given[step];
        }
        if comptime!(form.gate) {
            let decay = number_at(scalars_at + comptime!(((2 * CHUNK - 1) * 4) as u32));
            #[unroll]
            for n in 0..comptime!(key / 8) {
                d[n] *= Sums::new(decay);
            }
            #[unroll]
            for step in 0..steps {
                let (left, right) = comptime!((2 * step, 2 * step + 1));
                read[step] = operand(
                    part(given[step], 0usize, storage) * of_steps(scalars_at, 1usize, left),
                    part(given[step], 1usize, storage) * of_steps(scalars_at, 1usize, right),
                    storage,
                );
            }
        }
        if comptime!(form.rows) {
            decay_rows(&mut d, scalars_at, form);
        }
        let rows = rows_of(
            sequence,
            head,
            sizes.heads,
            chunk * CHUNK,
            sizes.steps,
            value,
            own,
        );
        if comptime!(form.erases()) {
            #[unroll]
            for step in 0..steps {
                words[step] = operand(
                    d_u[comptime!(2 * step)],
                    d_u[comptime!(2 * step + 1)],
                    storage,
                );
            }
            begin(&words, now + stage.inverse, &mut r, of_chunk, false);
            begin(&read, now + stage.queries, &mut d, to_state, true);
            settle(&mut r, of_chunk, 1usize);
            #[unroll]
            for step in 0..steps {
                met[step] = operand(r[comptime!(2 * step)], r[comptime!(2 * step + 1)], storage);
            }
            if comptime!(!ends) {
                let rows = columns_of(place, own, CHUNK, form);
                write_operands(&met, d_r, &rows, own_memory, CHUNK, true, form);
            }
            if comptime!(form.separate() && !ends) {
                let mut d_given = Array::<Sums>::new(comptime!(2 * steps));
                set_product(&held, now + stage.given_ends, &mut d_given, of_state);
                multiply(&given, now + stage.given_scores, &mut d_given, of_chunk);
                multiply(&met, now + stage.given_met, &mut d_given, of_chunk);
                write_steps(&d_given, d_v, &rows, own_memory, form);
            } else if comptime!(!form.separate()) {
                #[unroll]
                for n in 0..comptime!(2 * steps) {
                    r[n] *= of_steps(scalars_at, form.betas(), n);
                }
                if comptime!(!ends) {
                    write_steps(&r, d_v, &rows, own_memory, form);
                }
            }
        } else {
            begin(&read, now + stage.queries, &mut d, to_state, true);
            if comptime!(!ends) {
                write_steps(&d_u, d_v, &rows, own_memory, form);
            }
        }
        settle(&mut d, to_state, 0usize);
        if comptime!(form.separate()) {
            multiply(&met, now + stage.keys, &mut d, to_state);
        } else if comptime!(form.erases()) {
            #[unroll]
            for step in 0..steps {
                let (left, right) = comptime!((2 * step, 2 * step + 1));
                let (mut first, mut second) = (r[left], r[right]);
                if comptime!(form.gate) {
                    first *= of_steps(scalars_at, 1usize, left);
                    second *= of_steps(scalars_at, 1usize, right);
                }
                let zero = Sums::new(0.0f32);
                words[step] = operand(zero - first, zero - second, storage);
            }
            multiply(&words, now + stage.keys, &mut d, to_state);
        }
    }
    if comptime!(ends) {
        write_state(&d, d_initial, state_at, value, form);
    } else if segment == 0 {
        write_state(
            &d,
            d_initial,
            lane * comptime!(key * value) + own,
            value,
            form,
        );
    }
}
