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
use super::scores::Sizes;
use super::stage::*;
use super::tile::*;
use crate::gpu::address::address;
use crate::gpu::tensor::*;

/// A cube takes some columns of a head, 16 to a plane. `d_states`: the gradient of the state after every chunk, `[.., V, K]`; `d_r`:
/// `dR`, `[.., V, CHUNK]`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn pass_backward(
    q: &[u32],
    k: &[u32],
    ends: &[u32],
    d_o: &[u32],
    inverse: &[u32],
    scores: &[u32],
    given_met: &[u32],
    given_scores: &[u32],
    given_ends: &[u32],
    scalars: &[f32],
    d_last: &[f32],
    d_v: &mut [u32],
    d_states: &mut [u32],
    d_r: &mut [u32],
    d_initial: &mut [f32],
    sizes: Sizes,
    #[comptime] form: Form,
) {
    if CUBE_POS >= sizes.cubes {
        terminate!();
    }
    let (key, value, storage) = comptime!((form.key, form.value, form.storage));
    let stage = comptime!(Stage::new(form, true));
    let mut memory = Shared::<[Words]>::new_slice(comptime!(2 * stage.bytes as usize / 16));
    let start = shared_address(&mut memory);
    let sources = Sources {
        q: address(q),
        k: address(k),
        ends: address(ends),
        values: address(d_o),
        inverse: address(inverse),
        scores: address(scores),
        given_met: address(given_met),
        given_scores: address(given_scores),
        given_ends: address(given_ends),
        scalars: address(scalars),
    };
    let tiles = comptime!(value / (16 * form.planes));
    let (lane, tile) = (CUBE_POS / tiles, CUBE_POS % tiles);
    let column = tile * comptime!(16 * form.planes);
    let own = column + UNIT_POS_Y as usize * 16;
    let chunks = sizes.steps.div_ceil(CHUNK);

    let state_at = lane * comptime!(key * value) + own;
    let mut d = Array::<Sums>::new(comptime!(key / 8));
    read_state(&mut d, d_last, state_at, form.state, form);
    let depth = comptime!(key / 16);
    let steps = comptime!(CHUNK / 16);
    let of_state = comptime!(form.of_state());
    let of_chunk = comptime!(form.of_chunk(true));
    let to_state = comptime!(form.to_state());

    load_stage(
        start,
        &sources,
        lane,
        chunks - 1,
        column,
        &sizes,
        stage,
        true,
        form,
    );
    end_group();
    let mut held = Array::<Words>::new(depth);
    let mut given = Array::<Words>::new(steps);
    let mut words = Array::<Words>::new(steps);
    let mut d_u = Array::<Sums>::new(comptime!(2 * steps));
    let mut r = Array::<Sums>::new(comptime!(2 * steps));
    for n in 0..chunks {
        let chunk = chunks - 1 - n;
        let now = start + (n % 2) as u32 * stage.bytes;
        if chunk > 0 {
            let next = start + ((n + 1) % 2) as u32 * stage.bytes;
            load_stage(
                next,
                &sources,
                lane,
                chunk - 1,
                column,
                &sizes,
                stage,
                true,
                form,
            );
        }
        end_group();
        wait_for_all_but_one();
        sync_cube();
        #[unroll]
        for step in 0..depth {
            held[step] = operand(d[comptime!(2 * step)], d[comptime!(2 * step + 1)], storage);
        }
        let place = lane * chunks + chunk;
        write_operands(
            &held,
            d_states,
            (place * value + own) * comptime!(key / 2),
            key,
        );
        let scalars_at = now + stage.scalars;
        let own_values =
            now + stage.values + UNIT_POS_Y * 32 + own_column(comptime!(pitch(16 * form.planes)));
        clear(&mut d_u, comptime!(2 * steps));
        multiply(&held, now + stage.ends, &mut d_u, of_state);
        if comptime!(form.gate) {
            #[unroll]
            for n in 0..comptime!(2 * steps) {
                d_u[n] *= of_steps(scalars_at, 3usize, n);
            }
        }
        #[unroll]
        for step in 0..steps {
            given[step] =
                blocks_transposed(own_values + comptime!(offset(16 * form.planes, 16 * step, 0)));
        }
        multiply(&given, now + stage.scores, &mut d_u, of_chunk);
        let rows = rows_of(
            lane / sizes.heads,
            lane % sizes.heads,
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
            clear(&mut r, comptime!(2 * steps));
            multiply(&words, now + stage.inverse, &mut r, of_chunk);
            #[unroll]
            for step in 0..steps {
                words[step] = operand(r[comptime!(2 * step)], r[comptime!(2 * step + 1)], storage);
            }
            write_operands(
                &words,
                d_r,
                (place * value + own) * comptime!(CHUNK / 2),
                CHUNK,
            );
            if comptime!(form.separate()) {
                let mut d_given = Array::<Sums>::new(comptime!(2 * steps));
                clear(&mut d_given, comptime!(2 * steps));
                multiply(&held, now + stage.given_ends, &mut d_given, of_state);
                multiply(&given, now + stage.given_scores, &mut d_given, of_chunk);
                multiply(&words, now + stage.given_met, &mut d_given, of_chunk);
                write_steps(&d_given, d_v, &rows, form);
            } else {
                #[unroll]
                for n in 0..comptime!(2 * steps) {
                    r[n] *= of_steps(scalars_at, form.betas(), n);
                }
                write_steps(&r, d_v, &rows, form);
            }
        } else {
            write_steps(&d_u, d_v, &rows, form);
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
                given[step] = operand(
                    part(given[step], 0usize, storage) * of_steps(scalars_at, 1usize, left),
                    part(given[step], 1usize, storage) * of_steps(scalars_at, 1usize, right),
                    storage,
                );
            }
        }
        if comptime!(form.rows) {
            decay_rows(&mut d, scalars_at, form);
        }
        multiply(&given, now + stage.queries, &mut d, to_state);
        if comptime!(form.separate()) {
            multiply(&words, now + stage.keys, &mut d, to_state);
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
        sync_cube();
    }
    write_state(&d, d_initial, state_at, form);
}
