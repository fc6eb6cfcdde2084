//! Forward along the chunks: a plane carries 16 columns of a state in registers, transposed, so that every product of a chunk is the
//! operand of the next as it lies.
//!
//! ```text
//! R = β (V - e^G K S)       U = T R       O = e^G Q S + P U       S ← e^(G_C) S + Kᵀ (e^(G_C - G) U)
//! ```
//!
//! with `T` and `P` from [`scores`](super::scores); without an erase `U = V`. Where rows have decays, the queries and keys come with
//! theirs from [`row_scores`](super::row_scores). Where the erase has vectors of its own, `a` that reads and `b` that is written,
//!
//! ```text
//! U = T (e^G' a S + M V)       O = e^G Q S + P U + P' V       S ← e^(G_C) S + (e^(G_C - G) b)ᵀ U + (e^(G_C - G) K)ᵀ V
//! ```
//!
//! with `P` of `b`, `M` and `P'` of the keys, and `G'` the sum before the step.

use cubecl::prelude::*;

use super::Form;
use super::columns::*;
use super::scores::Sizes;
use super::stage::*;
use super::tile::*;
use crate::gpu::address::address;
use crate::gpu::tensor::*;

/// A cube takes some columns of a head, 16 to a plane. `k`: the keys that read the state, `ends`: those that are written to it. Either `o` and `last` are written or, for a backward pass, the state before
/// every chunk, `[.., V, K]`, and `U`, `[.., V, CHUNK]`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn pass_forward(
    q: &[u32],
    k: &[u32],
    ends: &[u32],
    v: &[u32],
    inverse: &[u32],
    scores: &[u32],
    given_met: &[u32],
    given_scores: &[u32],
    given_ends: &[u32],
    scalars: &[f32],
    initial: &[f32],
    o: &mut [u32],
    last: &mut [f32],
    states: &mut [u32],
    added: &mut [u32],
    sizes: Sizes,
    #[comptime] form: Form,
    #[comptime] outputs: bool,
) {
    if CUBE_POS >= sizes.cubes {
        terminate!();
    }
    let (key, value, storage) = comptime!((form.key, form.value, form.storage));
    let stage = comptime!(Stage::new(form, outputs));
    let mut memory = Shared::<[Words]>::new_slice(comptime!(2 * stage.bytes as usize / 16));
    let start = shared_address(&mut memory);
    let sources = Sources {
        q: address(q),
        k: address(k),
        ends: address(ends),
        values: address(v),
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
    let mut s = Array::<Sums>::new(comptime!(key / 8));
    read_state(&mut s, initial, state_at, form.state, form);
    let depth = comptime!(key / 16);
    let steps = comptime!(CHUNK / 16);
    let of_state = comptime!(form.of_state());
    let of_chunk = comptime!(form.of_chunk(false));
    let to_state = comptime!(form.to_state());

    load_stage(
        start, &sources, lane, 0usize, column, &sizes, stage, outputs, form,
    );
    end_group();
    let mut held = Array::<Words>::new(depth);
    let mut words = Array::<Words>::new(steps);
    let mut given = Array::<Words>::new(comptime!(if form.separate() { steps } else { 1 }));
    let mut r = Array::<Sums>::new(comptime!(2 * steps));
    let mut u = Array::<Sums>::new(comptime!(2 * steps));
    let mut out = Array::<Sums>::new(comptime!(2 * steps));
    for chunk in 0..chunks {
        let now = start + (chunk % 2) as u32 * stage.bytes;
        if chunk + 1 < chunks {
            let next = start + ((chunk + 1) % 2) as u32 * stage.bytes;
            load_stage(
                next,
                &sources,
                lane,
                chunk + 1,
                column,
                &sizes,
                stage,
                outputs,
                form,
            );
        }
        end_group();
        wait_for_all_but_one();
        sync_cube();
        #[unroll]
        for step in 0..depth {
            held[step] = operand(s[comptime!(2 * step)], s[comptime!(2 * step + 1)], storage);
        }
        let place = lane * chunks + chunk;
        if comptime!(!outputs) {
            let at = (place * value + own) * comptime!(key / 2);
            write_operands(&held, states, at, key);
        }
        let scalars_at = now + stage.scalars;
        let own_values =
            now + stage.values + UNIT_POS_Y * 32 + own_column(comptime!(pitch(16 * form.planes)));
        clear(&mut r, comptime!(2 * steps));
        if comptime!(form.erases()) {
            multiply(&held, now + stage.keys, &mut r, of_state);
        }
        if comptime!(outputs) {
            clear(&mut out, comptime!(2 * steps));
            multiply(&held, now + stage.queries, &mut out, of_state);
        }
        #[unroll]
        for step in 0..steps {
            let values =
                blocks_transposed(own_values + comptime!(offset(16 * form.planes, 16 * step, 0)));
            if comptime!(form.separate()) {
                given[step] = values;
            } else if comptime!(form.erases()) {
                #[unroll]
                for half in 0..2usize {
                    let n = comptime!(2 * step + half);
                    let mut read = r[n];
                    if comptime!(form.gate) {
                        read *= of_steps(scalars_at, 1usize, n);
                    }
                    r[n] = (part(values, half, storage) - read)
                        * of_steps(scalars_at, form.betas(), n);
                }
                words[step] = operand(r[comptime!(2 * step)], r[comptime!(2 * step + 1)], storage);
            } else {
                words[step] = values;
                if comptime!(form.gate) {
                    u[comptime!(2 * step)] = part(values, 0usize, storage);
                    u[comptime!(2 * step + 1)] = part(values, 1usize, storage);
                }
            }
        }
        if comptime!(form.separate()) {
            multiply(&given, now + stage.given_met, &mut r, of_chunk);
            #[unroll]
            for step in 0..steps {
                words[step] = operand(r[comptime!(2 * step)], r[comptime!(2 * step + 1)], storage);
            }
        }
        if comptime!(form.erases()) {
            clear(&mut u, comptime!(2 * steps));
            multiply(&words, now + stage.inverse, &mut u, of_chunk);
            #[unroll]
            for step in 0..steps {
                words[step] = operand(u[comptime!(2 * step)], u[comptime!(2 * step + 1)], storage);
            }
        }
        if comptime!(outputs) {
            if comptime!(form.gate) {
                #[unroll]
                for n in 0..comptime!(2 * steps) {
                    out[n] *= of_steps(scalars_at, 1usize, n);
                }
            }
            multiply(&words, now + stage.scores, &mut out, of_chunk);
            if comptime!(form.separate()) {
                multiply(&given, now + stage.given_scores, &mut out, of_chunk);
            }
        } else {
            let at = (place * value + own) * comptime!(CHUNK / 2);
            write_operands(&words, added, at, CHUNK);
        }
        if comptime!(form.gate) {
            let decay = number_at(scalars_at + comptime!(((2 * CHUNK - 1) * 4) as u32));
            #[unroll]
            for n in 0..comptime!(key / 8) {
                s[n] *= Sums::new(decay);
            }
            #[unroll]
            for step in 0..steps {
                let (left, right) = comptime!((2 * step, 2 * step + 1));
                words[step] = operand(
                    u[left] * of_steps(scalars_at, 3usize, left),
                    u[right] * of_steps(scalars_at, 3usize, right),
                    storage,
                );
            }
        }
        if comptime!(form.rows) {
            decay_rows(&mut s, scalars_at, form);
        }
        multiply(&words, now + stage.ends, &mut s, to_state);
        if comptime!(form.separate()) {
            multiply(&given, now + stage.given_ends, &mut s, to_state);
        }
        if comptime!(outputs) {
            let rows = rows_of(
                lane / sizes.heads,
                lane % sizes.heads,
                sizes.heads,
                chunk * CHUNK,
                sizes.steps,
                value,
                own,
            );
            write_steps(&out, o, &rows, form);
        }
        sync_cube();
    }
    if comptime!(outputs) {
        write_state(&s, last, state_at, form);
    }
}
