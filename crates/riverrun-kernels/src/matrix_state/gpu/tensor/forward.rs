//! Forward along the chunks: a plane carries 16 columns of a state in registers, transposed, so that every product of a chunk is the
//! operand of the next as it lies.
//!
//! ```text
//! R = β (V - e^G K S)       U = T R       O = e^G Q S + P U       S ← e^(G_C) S + Kᵀ (e^(G_C - G) U)
//! ```
//!
//! with `T` and `P` from [`scores`](super::scores); without an erase `U = V`.

use cubecl::prelude::*;

use super::Form;
use super::scores::{SCALARS, Sizes};
use super::tile::*;
use crate::gpu::address::address;
use crate::gpu::tensor::*;

/// The four numbers of a part of a product, whose columns are steps: a number of each of two steps.
#[cube]
pub(super) fn by_step(left: f32, right: f32) -> Sums {
    let mut sums = Sums::new(left);
    sums.insert(1usize, right);
    sums.insert(3usize, right);
    sums
}

/// The scalars of the thread's two steps of a block of 8: row `row` of the buffer of scalars at `at`.
#[cube]
pub(super) fn of_steps(at: u32, #[comptime] row: usize, #[comptime] n: usize) -> Sums {
    let place = at + UNIT_POS_X % 4 * 8 + comptime!(((row * CHUNK + 8 * n) * 4) as u32);
    by_step(number_at(place), number_at(place + 4))
}

/// The rows of the columns `first` and on of a tensor with `len` numbers a head, from step `step` on.
#[cube]
pub(super) fn rows_of(
    sequence: usize,
    head: usize,
    heads: usize,
    step: usize,
    steps: usize,
    len: usize,
    first: usize,
) -> Rows {
    Rows {
        first: ((sequence * steps + step) * heads + head) * len + first,
        stride: heads * len,
        there: (steps - step).min(CHUNK),
    }
}

/// Writes a product whose rows are the plane's 16 columns of a tensor, and whose columns are steps.
#[cube]
pub(super) fn write_steps(sums: &Array<Sums>, x: &mut [u32], rows: &Rows, #[comptime] form: Form) {
    let lane = UNIT_POS_X as usize;
    #[unroll]
    for block in 0..comptime!(CHUNK / 16) {
        let words = operand(
            sums[comptime!(2 * block)],
            sums[comptime!(2 * block + 1)],
            form.storage,
        );
        #[unroll]
        for half in 0..2usize {
            let step = comptime!(16 * block + 8 * half) + lane / 4;
            let at = (rows.first + step * rows.stride) / 2 + lane % 4;
            let upper = turned(words.extract(comptime!(2 * half)));
            let lower = turned(words.extract(comptime!(2 * half + 1)));
            if step < rows.there {
                x[at] = upper;
                x[at + 4] = lower;
            }
        }
    }
}

/// Writes operands, each for 16 columns of a matrix with rows of `len` numbers; the plane's 16 rows begin at word `start`.
#[cube]
pub(super) fn write_operands(
    words: &Array<Words>,
    x: &mut [u32],
    start: usize,
    #[comptime] len: usize,
) {
    let lane = UNIT_POS_X as usize;
    let at = start + lane / 4 * comptime!(len / 2) + lane % 4;
    #[unroll]
    for n in 0..comptime!(len / 16) {
        let four = words[n];
        let place = at + comptime!(8 * n);
        x[place] = four.extract(0usize);
        x[place + comptime!(4 * len)] = four.extract(1usize);
        x[place + 4] = four.extract(2usize);
        x[place + comptime!(4 * len + 4)] = four.extract(3usize);
    }
}

/// Reads or zeroes the plane's 16 columns of a state `[K, V]`, the first of which is number `at`.
#[cube]
pub(super) fn read_state(
    state: &mut Array<Sums>,
    x: &[f32],
    at: usize,
    #[comptime] given: bool,
    #[comptime] form: Form,
) {
    let lane = UNIT_POS_X as usize;
    #[unroll]
    for n in 0..comptime!(form.key / 8) {
        let mut numbers = Sums::new(0.0f32);
        if comptime!(given) {
            let row = comptime!(8 * n) + lane % 4 * 2;
            let place = at + row * comptime!(form.value) + lane / 4;
            numbers.insert(0usize, x[place]);
            numbers.insert(1usize, x[place + comptime!(form.value)]);
            numbers.insert(2usize, x[place + 8]);
            numbers.insert(3usize, x[place + comptime!(form.value + 8)]);
        }
        state[n] = numbers;
    }
}

/// Writes them.
#[cube]
pub(super) fn write_state(state: &Array<Sums>, x: &mut [f32], at: usize, #[comptime] form: Form) {
    let lane = UNIT_POS_X as usize;
    #[unroll]
    for n in 0..comptime!(form.key / 8) {
        let numbers = state[n];
        let row = comptime!(8 * n) + lane % 4 * 2;
        let place = at + row * comptime!(form.value) + lane / 4;
        x[place] = numbers.extract(0usize);
        x[place + comptime!(form.value)] = numbers.extract(1usize);
        x[place + 8] = numbers.extract(2usize);
        x[place + comptime!(form.value + 8)] = numbers.extract(3usize);
    }
}

/// Where the tiles of a stage begin, and its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Stage {
    pub keys: u32,
    pub queries: u32,
    pub inverse: u32,
    pub scores: u32,
    pub values: u32,
    pub scalars: u32,
    pub bytes: u32,
}

impl Stage {
    /// Tiles of the queries and the scores are there where `reads`; that of the inverse where something is erased.
    pub fn new(form: Form, reads: bool) -> Self {
        let mut next = 0;
        let mut place = |there: bool, bytes: u32| {
            let at = next;
            next += if there { bytes } else { 0 };
            at
        };
        let square = bytes(CHUNK, CHUNK);
        Self {
            keys: place(true, bytes(CHUNK, form.key)),
            queries: place(reads, bytes(CHUNK, form.key)),
            inverse: place(form.erase, square),
            scores: place(reads, square),
            values: place(true, bytes(CHUNK, 16 * form.planes)),
            scalars: place(true, (SCALARS * CHUNK * 4) as u32),
            bytes: next,
        }
    }
}

/// The addresses of what a stage is read from.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Sources {
    pub q: u64,
    pub k: u64,
    pub values: u64,
    pub inverse: u64,
    pub scores: u64,
    pub scalars: u64,
}

/// Begins to copy a chunk of a head; `place` is the chunk's number among all, `column` the first of the cube.
#[cube]
pub(super) fn load_stage(
    at: u32,
    sources: &Sources,
    lane: usize,
    chunk: usize,
    column: usize,
    sizes: &Sizes,
    #[comptime] stage: Stage,
    #[comptime] reads: bool,
    #[comptime] form: Form,
) {
    let threads = comptime!(32 * form.planes);
    let (sequence, head) = (lane / sizes.heads, lane % sizes.heads);
    let key_head = head / (sizes.heads / sizes.key_heads);
    let first = chunk * CHUNK;
    let keys = rows_of(
        sequence,
        key_head,
        sizes.key_heads,
        first,
        sizes.steps,
        form.key,
        0usize,
    );
    let values = rows_of(
        sequence,
        head,
        sizes.heads,
        first,
        sizes.steps,
        form.value,
        column,
    );
    let place = lane * sizes.steps.div_ceil(CHUNK) + chunk;
    let square = Rows {
        first: place * comptime!(CHUNK * CHUNK),
        stride: CHUNK.runtime(),
        there: CHUNK.runtime(),
    };
    load(at + stage.keys, sources.k, &keys, CHUNK, form.key, threads);
    if comptime!(reads) {
        load(
            at + stage.queries,
            sources.q,
            &keys,
            CHUNK,
            form.key,
            threads,
        );
        load(
            at + stage.scores,
            sources.scores,
            &square,
            CHUNK,
            CHUNK,
            threads,
        );
    }
    if comptime!(form.erase) {
        load(
            at + stage.inverse,
            sources.inverse,
            &square,
            CHUNK,
            CHUNK,
            threads,
        );
    }
    let columns = comptime!(16 * form.planes);
    load(
        at + stage.values,
        sources.values,
        &values,
        CHUNK,
        columns,
        threads,
    );
    let scalars = comptime!(SCALARS * CHUNK / 4);
    let from = sources.scalars + u64::cast_from(place) * comptime!(scalars as u64 * 16);
    load_flat(at + stage.scalars, from, scalars, threads);
}

/// A cube takes some columns of a head, 16 to a plane. Either `o` and `last` are written or, for a backward pass, the state before
/// every chunk, `[.., V, K]`, and `U`, `[.., V, CHUNK]`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn pass_forward(
    q: &[u32],
    k: &[u32],
    v: &[u32],
    inverse: &[u32],
    scores: &[u32],
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
        values: address(v),
        inverse: address(inverse),
        scores: address(scores),
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
    let of_state = comptime!(Product {
        depth,
        columns: steps,
        len: key,
        rows: false,
        filled: Filled::All,
        storage,
    });
    let of_chunk = comptime!(Product {
        depth: steps,
        columns: steps,
        len: CHUNK,
        rows: false,
        filled: Filled::Upper,
        storage,
    });
    let to_state = comptime!(Product {
        depth: steps,
        columns: depth,
        len: key,
        rows: true,
        filled: Filled::All,
        storage,
    });

    load_stage(
        start, &sources, lane, 0usize, column, &sizes, stage, outputs, form,
    );
    end_group();
    let mut held = Array::<Words>::new(depth);
    let mut words = Array::<Words>::new(steps);
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
        if comptime!(form.erase) {
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
            if comptime!(form.erase) {
                #[unroll]
                for half in 0..2usize {
                    let n = comptime!(2 * step + half);
                    let mut read = r[n];
                    if comptime!(form.gate) {
                        read *= of_steps(scalars_at, 1usize, n);
                    }
                    r[n] = (part(values, half, storage) - read) * of_steps(scalars_at, 2usize, n);
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
        if comptime!(form.erase) {
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
        multiply(&words, now + stage.keys, &mut s, to_state);
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
