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
use super::rows::*;
use super::scores::{SCALARS, Sizes};
use super::stage::rows_of;
use super::tile::*;
use crate::gpu::address::address;
use crate::gpu::full_plane::shuffle_xor;
use crate::gpu::tensor::*;

/// Planes of a cube, 16 steps each.
pub(super) const PLANES: usize = CHUNK / 16;

/// Cubes of a chunk, each with a part of the channels: two of them fit a multiprocessor, and one loads while the other computes.
pub(super) const CUBES: usize = 2;

/// Sums over a part of the channels: of `dG`, of its last row, `k·de`, `v·dR`.
pub(super) const SUMS: usize = 4;

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
    pub bytes: u32,
}

impl Tiles {
    pub fn new(form: Form) -> Self {
        let mut next = 0;
        let mut place = |there: bool, bytes: u32| {
            let at = next;
            next += if there { bytes } else { 0 };
            at
        };
        let channels = form.key / CUBES;
        let (rows, columns) = (bytes(CHUNK, channels), bytes(form.value, CHUNK));
        let state = bytes(form.value, channels);
        Self {
            keys: place(true, rows),
            queries: place(true, rows),
            d_o: place(true, bytes(CHUNK, form.value)),
            added: place(true, columns),
            d_r: place(form.erases(), columns),
            states: place(true, state),
            d_states: place(true, state),
            scalars: place(true, (SCALARS * CHUNK * 4) as u32),
            bytes: next,
        }
    }
}

/// A cube takes a chunk of a head, and a part of the channels of its keys. `totals`: `[.., CUBES, SUMS, CHUNK]`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn chunk_gradients(
    q: &[u32],
    k: &[u32],
    v: &[u32],
    d_o: &[u32],
    added: &[u32],
    d_r: &[u32],
    states: &[u32],
    d_states: &[u32],
    scalars: &[f32],
    d_q: &mut [u32],
    d_k: &mut [u32],
    totals: &mut [f32],
    sizes: Sizes,
    #[comptime] form: Form,
) {
    if CUBE_POS >= sizes.cubes {
        terminate!();
    }
    let (key, value, storage) = comptime!((form.key, form.value, form.storage));
    let mine = comptime!(key / CUBES);
    let threads = comptime!(32 * PLANES);
    let tiles = comptime!(Tiles::new(form));
    let mut memory = Shared::<[Words]>::new_slice(comptime!(tiles.bytes as usize / 16));
    let start = shared_address(&mut memory);

    let chunks = sizes.steps.div_ceil(CHUNK);
    let (share, rest) = (CUBE_POS % CUBES, CUBE_POS / CUBES);
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
    load(start + tiles.keys, address(k), &keys, CHUNK, mine, threads);
    load(
        start + tiles.d_o,
        address(d_o),
        &values,
        CHUNK,
        value,
        threads,
    );
    load(
        start + tiles.added,
        address(added),
        &columns,
        value,
        CHUNK,
        threads,
    );
    if comptime!(form.erases()) {
        load(
            start + tiles.d_r,
            address(d_r),
            &columns,
            value,
            CHUNK,
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
    load(
        start + tiles.states,
        address(states),
        &matrix,
        value,
        mine,
        threads,
    );
    end_group();
    load(
        start + tiles.queries,
        address(q),
        &keys,
        CHUNK,
        mine,
        threads,
    );
    load(
        start + tiles.d_states,
        address(d_states),
        &matrix,
        value,
        mine,
        threads,
    );
    end_group();
    wait_for_all_but_one();
    sync_cube();

    let own = Own {
        step: UNIT_POS_Y * 16,
        channel,
        scalars: start + tiles.scalars,
    };
    let (depth, steps, channels) = comptime!((value / 16, CHUNK / 16, mine / 8));
    let rows_of_values = comptime!(form.of_values());
    let columns_of_values = comptime!(Product {
        depth,
        columns: steps,
        len: value,
        rows: false,
        filled: Filled::All,
        storage,
    });
    let of_state = comptime!(Product {
        depth,
        columns: channels / 2,
        len: mine,
        rows: true,
        filled: Filled::All,
        storage,
    });
    let of_steps = comptime!(Product {
        depth: steps,
        columns: channels / 2,
        len: mine,
        rows: true,
        filled: Filled::All,
        storage,
    });

    let mut a = Array::<Words>::new(depth);
    let mut square = Array::<Sums>::new(comptime!(2 * steps));
    let mut words = Array::<Words>::new(steps);
    let mut sums = Array::<Sums>::new(channels);
    let mut erased = Array::<Sums>::new(channels);

    // dq
    let from = start
        + tiles.d_o
        + own.step * comptime!(offset(value, 1, 0))
        + own_row(comptime!(pitch(value)));
    #[unroll]
    for step in 0..depth {
        a[step] = blocks(from + comptime!(32 * step as u32));
    }
    clear(&mut square, comptime!(2 * steps));
    multiply(&a, start + tiles.added, &mut square, rows_of_values);
    decayed(&square, &mut words, &own, true, false, false, form);
    clear(&mut sums, channels);
    multiply(&a, start + tiles.states, &mut sums, of_state);
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
    sync_cube();
    let (mut gate_0, mut gate_1) = dots(&sums, start + tiles.queries, &own, form);

    // de
    let turned = own.step * 2 + own_column(comptime!(pitch(CHUNK)));
    let (mut met_0, mut met_1) = (0.0f32.runtime(), 0.0f32.runtime());
    let (mut of_v_0, mut of_v_1) = (0.0f32.runtime(), 0.0f32.runtime());
    if comptime!(form.erases()) {
        let last = sizes.steps - 1 - first;
        let row = own.step as usize + UNIT_POS_X as usize / 4;
        let v_0 = (values.first + row.min(last) * values.stride) / 2 + UNIT_POS_X as usize % 4;
        let v_1 =
            (values.first + (row + 8).min(last) * values.stride) / 2 + UNIT_POS_X as usize % 4;
        #[unroll]
        for step in 0..depth {
            a[step] = blocks_transposed(
                start + tiles.d_r + turned + comptime!(offset(CHUNK, 16 * step, 0)),
            );
            #[unroll]
            for n in 0..2usize {
                let d = part(a[step], n, storage);
                let upper = halves(v[v_0 + comptime!(8 * step + 4 * n)], storage);
                let lower = halves(v[v_1 + comptime!(8 * step + 4 * n)], storage);
                of_v_0 += d.extract(0usize) * upper.extract(0usize)
                    + d.extract(1usize) * upper.extract(1usize);
                of_v_1 += d.extract(2usize) * lower.extract(0usize)
                    + d.extract(3usize) * lower.extract(1usize);
            }
        }
        of_v_0 = over_four(of_v_0);
        of_v_1 = over_four(of_v_1);
        clear(&mut square, comptime!(2 * steps));
        multiply(&a, start + tiles.added, &mut square, rows_of_values);
        decayed(&square, &mut words, &own, true, true, false, form);
        clear(&mut erased, channels);
        multiply(&a, start + tiles.states, &mut erased, of_state);
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
        a[step] = blocks_transposed(
            start + tiles.added + turned + comptime!(offset(CHUNK, 16 * step, 0)),
        );
    }
    clear(&mut sums, channels);
    multiply(&a, start + tiles.d_states, &mut sums, of_state);
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
    clear(&mut square, comptime!(2 * steps));
    multiply(&a, start + tiles.d_o, &mut square, columns_of_values);
    decayed(&square, &mut words, &own, false, false, false, form);
    multiply(&words, start + tiles.queries, &mut sums, of_steps);
    if comptime!(form.erases()) {
        clear(&mut square, comptime!(2 * steps));
        multiply(&a, start + tiles.d_r, &mut square, rows_of_values);
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
                let row = n / words_of_row * comptime!(pitch(mine)) + n % words_of_row;
                let at = (row * 16) as u32;
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
        let at = (place * CUBES + share) * comptime!(SUMS * CHUNK) + row;
        totals[at] = gate_0;
        totals[at + 8] = gate_1;
        totals[at + CHUNK] = end_0;
        totals[at + comptime!(CHUNK + 8)] = end_1;
        totals[at + comptime!(2 * CHUNK)] = met_0;
        totals[at + comptime!(2 * CHUNK + 8)] = met_1;
        totals[at + comptime!(3 * CHUNK)] = of_v_0;
        totals[at + comptime!(3 * CHUNK + 8)] = of_v_1;
    }
}
