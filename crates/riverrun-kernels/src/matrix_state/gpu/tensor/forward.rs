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
use super::loads::*;
use super::product::*;
use super::results::*;
use super::scores::Sizes;
use super::stage::*;
use super::tile::*;
use crate::gpu::tensor::*;

/// What a pass writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Results {
    /// The outputs and the last state.
    Outputs,
    /// For a backward pass, the state before every chunk, `[.., V, K]`, and `U`, `[.., V, CHUNK]`.
    Between,
    /// The states before the two segments of a sequence, of which it takes the first alone.
    Starts,
    /// The affine map of each segment: the state after it when the one before is zero (`B`), and the matrix `A`, `[.., K, K]`.
    Ends,
}

impl Form {
    /// Cubes of a segment of a head.
    pub(super) fn tiles(self, results: Results) -> usize {
        let columns = match results {
            Results::Ends => self.value + self.key,
            Results::Outputs | Results::Between | Results::Starts => self.value,
        };
        columns / (16 * self.planes)
    }
}

/// Adds the plane's columns of the identity to a state where they are asked for; the first is number `first`.
#[cube]
fn add_identity(state: &mut Array<Sums>, first: usize, asked: bool, #[comptime] form: Form) {
    let lane = UNIT_POS_X as usize;
    #[unroll]
    for n in 0..comptime!(form.key / 8) {
        let mut numbers = state[n];
        let row = comptime!(8 * n) + lane % 4 * 2;
        let column = first + lane / 4;
        #[unroll]
        for i in 0..4usize {
            let (below, beside) = comptime!((i % 2, i / 2 * 8));
            let one = select(asked && row + below == column + beside, 1.0f32, 0.0f32);
            numbers.insert(i, numbers.extract(i) + one);
        }
        state[n] = numbers;
    }
}

/// A cube takes some columns of a segment of a head, 16 to a plane. `initial`: the state before every segment. `written`: the outputs,
/// or the states between chunks.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn pass_forward(
    inputs: PassInputs,
    v: &[u32],
    initial: &[f32],
    written: &mut [Words],
    added: &mut [Words],
    last: &mut [f32],
    map: &mut [f32],
    sizes: Sizes,
    #[comptime] form: Form,
    #[comptime] results: Results,
) {
    if CUBE_POS >= sizes.cubes {
        terminate!();
    }
    let bytes = comptime!(form.of_pass(results == Results::Outputs));
    let mut memory = Shared::<[Words]>::new_slice(comptime!(form.vectors(bytes)));
    let start = first_tile(shared_address(&mut memory), form);
    let sources = sources(&inputs, v);
    walk(
        start, &sources, initial, written, added, last, map, CUBE_POS, &sizes, form, results,
    );
}

/// What cube `cube` does, with tiles from `start` on.
#[cube]
pub(super) fn walk(
    start: u32,
    sources: &Sources,
    initial: &[f32],
    written: &mut [Words],
    added: &mut [Words],
    last: &mut [f32],
    map: &mut [f32],
    cube: usize,
    sizes: &Sizes,
    #[comptime] form: Form,
    #[comptime] results: Results,
) {
    let (key, value, storage) = comptime!((form.key, form.value, form.storage));
    let outputs = comptime!(results == Results::Outputs);
    let starts = comptime!(results == Results::Starts);
    let stage = comptime!(Stage::new(form, outputs));
    let tiles = comptime!(form.tiles(results));
    let of_values = comptime!(value / (16 * form.planes));
    let (piece, tile) = (cube / tiles, cube % tiles);
    let (mut lane, mut segment) = (piece / sizes.segments, piece % sizes.segments);
    if comptime!(starts) {
        lane = piece;
        segment = 0usize;
    }
    let (sequence, head) = (lane / sizes.heads, lane % sizes.heads);
    let mut column = tile * comptime!(16 * form.planes);
    let maps = tile >= of_values;
    if comptime!(results == Results::Ends) {
        // Of columns of the map the values do not count.
        column = select(maps, column - value, column);
    }
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
        backward: false,
        stage,
    };
    if comptime!(form.loaders) && UNIT_POS_Y >= comptime!(form.planes as u32) {
        load_all(&path, sources, sizes, outputs, form);
        terminate!();
    }

    let state_at = piece * comptime!(key * value) + own;
    let mut s = Array::<Sums>::new(comptime!(key / 8));
    read_state(&mut s, initial, state_at, form.state, form);
    if comptime!(starts) {
        let first = 2 * lane * comptime!(key * value);
        write_state(&s, last, first + own, value, form);
    }
    if comptime!(results == Results::Ends) {
        add_identity(&mut s, own, maps, form);
    }
    let depth = comptime!(key / 16);
    let steps = comptime!(CHUNK / 16);
    let of_state = comptime!(form.of_state());
    let of_chunk = comptime!(form.of_chunk(false));
    let to_state = comptime!(form.to_state());

    let mut held = Array::<Words>::new(depth);
    let mut words = Array::<Words>::new(steps);
    let mut given = Array::<Words>::new(comptime!(if form.separate() { steps } else { 1 }));
    let mut r = Array::<Sums>::new(comptime!(2 * steps));
    let mut u = Array::<Sums>::new(comptime!(2 * steps));
    let mut out = Array::<Sums>::new(comptime!(2 * steps));
    load_first(&path, sources, sizes, outputs, form);
    for n in 0..path.count {
        let chunk = chunk_of(&path, n);
        let now = stage_of(&path, n, form);
        wait_for_chunk(form);
        #[unroll]
        for step in 0..depth {
            held[step] = operand(s[comptime!(2 * step)], s[comptime!(2 * step + 1)], storage);
        }
        let place = lane * chunks + chunk;
        let scalars_at = now + stage.scalars;
        let own_values =
            now + stage.values + UNIT_POS_Y * 32 + own_column(comptime!(pitch(16 * form.planes)));
        if comptime!(form.erases()) {
            begin(&held, now + stage.keys, &mut r, of_state, false);
        }
        if comptime!(outputs) {
            begin(&held, now + stage.queries, &mut out, of_state, false);
        } else if comptime!(results == Results::Between) {
            let rows = columns_of(place, own, key, form);
            write_operands(&held, written, &rows, own_memory, key, true, form);
        }
        // While the products run.
        load_next(&path, n, sources, sizes, outputs, form);
        if comptime!(form.erases()) {
            settle(&mut r, of_state, comptime!(usize::from(outputs)));
        }
        #[unroll]
        for step in 0..steps {
            let mut values =
                blocks_transposed(own_values + comptime!(offset(16 * form.planes, 16 * step, 0)));
            if comptime!(results == Results::Ends) && maps {
                values = Words::new(0u32);
            }
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
            set_product(&words, now + stage.inverse, &mut u, of_chunk);
            #[unroll]
            for step in 0..steps {
                words[step] = operand(u[comptime!(2 * step)], u[comptime!(2 * step + 1)], storage);
            }
        }
        if comptime!(outputs) {
            settle(&mut out, of_state, 0usize);
            if comptime!(form.gate) {
                #[unroll]
                for n in 0..comptime!(2 * steps) {
                    out[n] *= of_steps(scalars_at, 1usize, n);
                }
            }
            begin(&words, now + stage.scores, &mut out, of_chunk, true);
        }
        // What is added to the state.
        let mut late = Array::<Words>::new(steps);
        #[unroll]
        for step in 0..steps {
            late[step] = words[step];
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
                late[step] = operand(
                    u[left] * of_steps(scalars_at, 3usize, left),
                    u[right] * of_steps(scalars_at, 3usize, right),
                    storage,
                );
            }
        }
        if comptime!(form.rows) {
            decay_rows(&mut s, scalars_at, form);
        }
        begin(&late, now + stage.ends, &mut s, to_state, true);
        if comptime!(results == Results::Between) {
            let rows = columns_of(place, own, CHUNK, form);
            write_operands(&words, added, &rows, own_memory, CHUNK, true, form);
        }
        settle(&mut s, to_state, 0usize);
        if comptime!(form.separate()) {
            multiply(&given, now + stage.given_ends, &mut s, to_state);
        }
        if comptime!(outputs) {
            settle(&mut out, of_chunk, 0usize);
            if comptime!(form.separate()) {
                multiply(&given, now + stage.given_scores, &mut out, of_chunk);
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
            write_steps(&out, written, &rows, own_memory, form);
        }
    }
    if comptime!(outputs) {
        if segment + 1 == sizes.segments {
            write_state(&s, last, lane * comptime!(key * value) + own, value, form);
        }
    } else if comptime!(starts) {
        let second = (2 * lane + 1) * comptime!(key * value);
        write_state(&s, last, second + own, value, form);
    } else if comptime!(results == Results::Ends) {
        if maps {
            write_state(&s, map, piece * comptime!(key * key) + own, key, form);
        } else {
            write_state(&s, last, state_at, value, form);
        }
    }
}
