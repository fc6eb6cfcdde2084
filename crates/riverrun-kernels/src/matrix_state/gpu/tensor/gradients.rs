//! The gradients of a chunk's keys, queries, `β` and decays, from the state before it and the gradient of the state after it.
//!
//! ```text
//! A = tril(dO Uᵀ) Γ           B = -stril(dR Uᵀ) Γ
//! dq = e^G dO Sᵀ + A K        de = -e^G dR Sᵀ + B K        dk = e^(G_C - G) U Dᵀ + Aᵀ Q + Bᵀ (β K) + β de
//! dβ = k·de + v·dR
//! dG = q·dq + β k·de - k·(dk - β de), the last row also e^(G_C) Σ S D + Σ_j e^(G_C - G_j) k_j·(U Dᵀ)_j
//! ```
//!
//! The gradient of a log decay is the sum of `dG` from its step to the chunk's end.

use cubecl::prelude::*;

use super::Form;
use super::product::*;
use super::rows::*;
use super::scores::{SCALARS, Sizes};
use super::stage::{first_tile, meet, rows_of};
use super::tile::*;
use crate::gpu::address::address;
use crate::gpu::full_plane::shuffle_xor;
use crate::gpu::tensor::*;
use crate::gpu::warpgroup::PANEL;

/// Planes of a cube, 16 steps each.
pub(super) const PLANES: usize = CHUNK / 16;

/// Sums over a part of the channels: of `dG`, of its last row, `k·de`, and over parts of the columns of values twice `v·dR`.
pub(super) const SUMS: usize = 5;

/// Where the tiles begin, and bytes of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Tiles {
    keys: u32,
    queries: u32,
    d_o: u32,
    added: u32,
    d_r: u32,
    states: u32,
    d_states: u32,
    scalars: u32,
    results: u32,
    pub bytes: u32,
}

impl Form {
    /// Cubes of a chunk, each with a part of the channels: two of them fit a multiprocessor, and one loads while the other computes.
    pub(super) fn cubes(self) -> usize {
        if self.panels { self.key / PANEL } else { 2 }
    }

    /// The tile of a cube's channels of keys or queries.
    pub(super) fn of_channels(self) -> Layout {
        self.of_steps(self.key / self.cubes())
    }

    /// A tile whose rows are columns of values, with `len` numbers each.
    fn of_columns(self, len: usize) -> Layout {
        Layout {
            rows: self.value,
            ..self.of_steps(len)
        }
    }
}

impl Tiles {
    pub fn new(form: Form) -> Self {
        let mut next = 0;
        let mut place = |there: bool, bytes: u32| {
            let at = next;
            next += if there { bytes } else { 0 };
            at
        };
        let rows = form.of_channels();
        let (columns, state) = (form.of_columns(CHUNK), form.of_columns(rows.len));
        let (rows, columns, state) = (rows.bytes(), columns.bytes(), state.bytes());
        Self {
            keys: place(true, rows),
            queries: place(true, rows),
            d_o: place(true, form.of_steps(form.value).bytes()),
            added: place(true, columns),
            d_r: place(form.erases(), columns),
            states: place(true, state),
            d_states: place(true, state),
            scalars: place(true, (SCALARS * CHUNK * 4) as u32),
            results: place(true, bytes(CHUNK, form.of_channels().len)),
            bytes: next,
        }
    }
}

/// What a thread adds up of `v·dR` of a step: over half of the cube's columns of values.
#[cube]
fn with_values(v: &[Words], d_r: u32, values: &Rows, share: usize, #[comptime] form: Form) -> f32 {
    let layout = comptime!(form.of_columns(CHUNK));
    // Where the columns are too few for all cubes, the first has them.
    let shares = comptime!(if form.value.is_multiple_of(16 * form.cubes()) {
        form.cubes()
    } else {
        1
    });
    let count = comptime!(form.value / (2 * shares));
    let unit = UNIT_POS as usize;
    let (step, half) = (unit % CHUNK, unit / CHUNK);
    let column = (share % shares * 2 + half) * count;
    let row = step.min(values.there - 1);
    let at = (values.first + row * values.stride + column) / 8;
    let mut all = Array::<Words>::new(comptime!(count / 8));
    #[unroll]
    for n in 0..comptime!(count / 8) {
        all[n] = v[at + n];
    }
    let mut sum = 0.0f32.runtime();
    #[unroll]
    for n in 0..comptime!(count / 8) {
        #[unroll]
        for i in 0..4usize {
            let two = halves(all[n].extract(i), form.storage);
            #[unroll]
            for j in 0..2usize {
                let row = column as u32 + comptime!((8 * n + 2 * i + j) as u32);
                let place = place_at(row, step as u32 / 8, layout) + step as u32 % 8 / 2 * 4;
                let words = halves(word_at(d_r + place), form.storage);
                let d = select(step % 2 == 0, words.extract(0usize), words.extract(1usize));
                sum += two.extract(j) * d;
            }
        }
    }
    select(share < shares, sum, 0.0f32)
}

/// A cube takes a chunk of a head, and a part of the channels of its keys. `totals`: `[.., cubes, SUMS, CHUNK]`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn chunk_gradients(
    q: &[u32],
    k: &[u32],
    v: &[Words],
    d_o: &[u32],
    added: &[u32],
    d_r: &[u32],
    states: &[u32],
    d_states: &[u32],
    scalars: &[f32],
    d_q: &mut [Words],
    d_k: &mut [Words],
    totals: &mut [f32],
    sizes: Sizes,
    #[comptime] form: Form,
) {
    if CUBE_POS >= sizes.cubes {
        terminate!();
    }
    let (key, value, storage) = comptime!((form.key, form.value, form.storage));
    let (cubes, of_channels) = comptime!((form.cubes(), form.of_channels()));
    let mine = comptime!(of_channels.len);
    let (of_columns, of_matrix) = comptime!((form.of_columns(CHUNK), form.of_columns(mine)));
    let of_rows_of_values = comptime!(form.of_steps(value));
    let threads = comptime!(32 * PLANES);
    let tiles = comptime!(Tiles::new(form));
    let mut memory = Shared::<[Words]>::new_slice(comptime!(form.vectors(tiles.bytes)));
    let start = first_tile(shared_address(&mut memory), form);

    let chunks = sizes.steps.div_ceil(CHUNK);
    let (share, rest) = (CUBE_POS % cubes, CUBE_POS / cubes);
    let (head, rest) = (rest % sizes.heads, rest / sizes.heads);
    let (chunk, sequence) = (rest % chunks, rest / chunks);
    let place = (sequence * sizes.heads + head) * chunks + chunk;
    let first = chunk * CHUNK;
    let key_head = head / (sizes.heads / sizes.key_heads);
    let channel = share * mine;
    let keys = rows_of(
        sequence,
        key_head,
        sizes.key_heads,
        first,
        sizes.steps,
        key,
        channel,
    );
    let values = rows_of(
        sequence,
        head,
        sizes.heads,
        first,
        sizes.steps,
        value,
        0usize,
    );
    let columns = Rows {
        first: place * comptime!(value * CHUNK),
        stride: CHUNK.runtime(),
        there: value.runtime(),
    };
    let matrix = Rows {
        first: place * comptime!(value * key) + channel,
        stride: key.runtime(),
        there: value.runtime(),
    };
    load_tile(start + tiles.keys, address(k), &keys, of_channels, threads);
    load_tile(
        start + tiles.d_o,
        address(d_o),
        &values,
        of_rows_of_values,
        threads,
    );
    load_tile(
        start + tiles.added,
        address(added),
        &columns,
        of_columns,
        threads,
    );
    if comptime!(form.erases()) {
        load_tile(
            start + tiles.d_r,
            address(d_r),
            &columns,
            of_columns,
            threads,
        );
    }
    let from = address(scalars) + u64::cast_from(place) * comptime!((SCALARS * CHUNK * 4) as u64);
    load_flat(
        start + tiles.scalars,
        from,
        comptime!(SCALARS * CHUNK / 4),
        threads,
    );
    load_tile(
        start + tiles.states,
        address(states),
        &matrix,
        of_matrix,
        threads,
    );
    end_group();
    load_tile(
        start + tiles.queries,
        address(q),
        &keys,
        of_channels,
        threads,
    );
    load_tile(
        start + tiles.d_states,
        address(d_states),
        &matrix,
        of_matrix,
        threads,
    );
    end_group();
    wait_for_all_but_one();
    meet(form);

    let own = Own {
        step: UNIT_POS_Y * 16,
        channel,
        scalars: start + tiles.scalars,
        memory: start + tiles.results + UNIT_POS_Y * comptime!(bytes(16, mine)),
    };
    let (depth, steps, channels) = comptime!((value / 16, CHUNK / 16, mine / 8));
    let rows_of_values = comptime!(Product {
        panels: form.panels,
        ..form.of_values()
    });
    let columns_of_values = comptime!(Product {
        depth,
        columns: steps,
        len: value,
        rows: false,
        filled: Filled::All,
        storage,
        panels: form.panels,
    });
    let of_state = comptime!(Product {
        depth,
        columns: channels / 2,
        len: mine,
        rows: true,
        filled: Filled::All,
        storage,
        panels: form.panels,
    });
    let of_steps = comptime!(Product {
        depth: steps,
        columns: channels / 2,
        len: mine,
        rows: true,
        filled: Filled::All,
        storage,
        panels: form.panels,
    });

    let mut a = Array::<Words>::new(depth);
    let mut square = Array::<Sums>::new(comptime!(2 * steps));
    let mut words = Array::<Words>::new(steps);
    let mut sums = Array::<Sums>::new(channels);
    let mut erased = Array::<Sums>::new(channels);

    // dq
    #[unroll]
    for step in 0..depth {
        a[step] = rows_at(start + tiles.d_o, own.step, step, of_rows_of_values);
    }
    set_product(&a, start + tiles.added, &mut square, rows_of_values);
    decayed(&square, &mut words, &own, true, false, false, form);
    set_product(&a, start + tiles.states, &mut sums, of_state);
    if comptime!(form.gate) {
        let factor = of_rows(&own, 1usize);
        #[unroll]
        for n in 0..channels {
            sums[n] *= factor;
        }
    }
    multiply(&words, start + tiles.keys, &mut sums, of_steps);
    let heads = rows_of(sequence, head, sizes.heads, first, sizes.steps, key, 0usize);
    write_rows(&sums, d_q, &heads, &own, form);

    wait_for_all();
    meet(form);
    let (mut gate_0, mut gate_1) = dots(&sums, start + tiles.queries, &own, form);

    // de
    let mut of_values = 0.0f32.runtime();
    let (mut met_0, mut met_1) = (0.0f32.runtime(), 0.0f32.runtime());
    if comptime!(form.erases()) {
        #[unroll]
        for step in 0..depth {
            a[step] = columns_at(start + tiles.d_r, own.step, step, of_columns);
        }
        of_values = with_values(v, start + tiles.d_r, &values, share, form);
        set_product(&a, start + tiles.added, &mut square, rows_of_values);
        decayed(&square, &mut words, &own, true, true, false, form);
        set_product(&a, start + tiles.states, &mut erased, of_state);
        let mut factor = Sums::new(-1.0f32);
        if comptime!(form.gate) {
            factor = Sums::new(0.0f32) - of_rows(&own, 1usize);
        }
        #[unroll]
        for n in 0..channels {
            erased[n] *= factor;
        }
        multiply(&words, start + tiles.keys, &mut erased, of_steps);
        let (dot_0, dot_1) = dots(&erased, start + tiles.keys, &own, form);
        met_0 = dot_0;
        met_1 = dot_1;
        let factor = of_rows(&own, 2usize);
        gate_0 += factor.extract(0usize) * dot_0;
        gate_1 += factor.extract(2usize) * dot_1;
        #[unroll]
        for n in 0..channels {
            erased[n] *= factor;
        }
    }

    // dk
    #[unroll]
    for step in 0..depth {
        a[step] = columns_at(start + tiles.added, own.step, step, of_columns);
    }
    set_product(&a, start + tiles.d_states, &mut sums, of_state);
    let (mut end_0, mut end_1) = (0.0f32.runtime(), 0.0f32.runtime());
    if comptime!(form.gate) {
        let factor = of_rows(&own, 3usize);
        #[unroll]
        for n in 0..channels {
            sums[n] *= factor;
        }
        let (dot_0, dot_1) = dots(&sums, start + tiles.keys, &own, form);
        end_0 = dot_0;
        end_1 = dot_1;
    }
    set_product(&a, start + tiles.d_o, &mut square, columns_of_values);
    decayed(&square, &mut words, &own, false, false, false, form);
    multiply(&words, start + tiles.queries, &mut sums, of_steps);
    if comptime!(form.erases()) {
        set_product(&a, start + tiles.d_r, &mut square, rows_of_values);
        decayed(&square, &mut words, &own, false, true, true, form);
        multiply(&words, start + tiles.keys, &mut sums, of_steps);
    }
    if comptime!(form.gate) {
        let (dot_0, dot_1) = dots(&sums, start + tiles.keys, &own, form);
        gate_0 -= dot_0;
        gate_1 -= dot_1;
    }
    if comptime!(form.erases()) {
        #[unroll]
        for n in 0..channels {
            sums[n] += erased[n];
        }
    }
    write_rows(&sums, d_k, &heads, &own, form);

    if comptime!(form.gate) {
        let mut sum = 0.0f32.runtime();
        let words_of_row = comptime!(mine / 8);
        let all = comptime!(value * words_of_row);
        for n in 0..comptime!(all.div_ceil(threads)) {
            let n = n * threads + UNIT_POS as usize;
            if n < all {
                let mut place = n;
                if comptime!(!form.panels) {
                    place = n / words_of_row * comptime!(pitch(mine)) + n % words_of_row;
                }
                let at = (place * 16) as u32;
                let x = words_at(start + tiles.states + at);
                let y = words_at(start + tiles.d_states + at);
                #[unroll]
                for i in 0..4usize {
                    let left = halves(x.extract(i), storage);
                    let right = halves(y.extract(i), storage);
                    sum += left.extract(0usize) * right.extract(0usize)
                        + left.extract(1usize) * right.extract(1usize);
                }
            }
        }
        #[unroll]
        for i in 0..5usize {
            sum += shuffle_xor(sum, comptime!(1u32 << i));
        }
        // The last rows of all threads are added up: that of the state goes along with one of them.
        let decay = scalar(&own, 1usize, comptime!(CHUNK as u32 - 1));
        end_0 += select(UNIT_POS_X == 0, sum * decay, 0.0f32);
    }
    if UNIT_POS_X % 4 == 0 {
        let row = own.step as usize + UNIT_POS_X as usize / 4;
        let at = (place * cubes + share) * comptime!(SUMS * CHUNK) + row;
        totals[at] = gate_0;
        totals[at + 8] = gate_1;
        totals[at + CHUNK] = end_0;
        totals[at + comptime!(CHUNK + 8)] = end_1;
        totals[at + comptime!(2 * CHUNK)] = met_0;
        totals[at + comptime!(2 * CHUNK + 8)] = met_1;
    }
    if comptime!(form.erases()) {
        let at = (place * cubes + share) * comptime!(SUMS * CHUNK) + comptime!(3 * CHUNK);
        totals[at + UNIT_POS as usize] = of_values;
    }
}
