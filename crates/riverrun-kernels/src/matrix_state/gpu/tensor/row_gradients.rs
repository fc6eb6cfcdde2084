//! The gradients of a chunk where each row of the state has a decay of its own, from the state before it and the gradient of the state
//! after it.
//!
//! ```text
//! A = tril(dO Uᵀ)            B = -stril(dR Uᵀ)         Γ_ij = e^(G_i - G_j), of each channel
//! dq_i = e^(G_i) (dO Sᵀ)_i + Σ_j A_ij Γ_ij k_j         de_i = -e^(G_i) (dR Sᵀ)_i + Σ_j B_ij Γ_ij k_j
//! dw_j = e^(G_C - G_j) (U Dᵀ)_j + Σ_i Γ_ij (A_ij q_i + B_ij β_i k_i)
//! dk = dw + β de             dβ = k·de + v·dR
//! dG = q dq + β k de - k dw, the last row also e^(G_C) Σ S D + Σ_j e^(G_C - G_j) k_j (U Dᵀ)_j
//! ```
//!
//! Where the erase has vectors of its own, `a` that reads and `b` that is written, without `β`,
//!
//! ```text
//! A' = tril(dO Vᵀ)     B = stril(dR Uᵀ)     B' = stril(dR Vᵀ)     Γ'_ij = e^(G_(i-1) - G_j)
//! dq_i = e^(G_i) (dO Sᵀ)_i + Σ_j Γ_ij (A_ij b_j + A'_ij k_j)      da_i = e^(G_(i-1)) (dR Sᵀ)_i + Σ_j Γ'_ij (B_ij b_j + B'_ij k_j)
//! db_j = e^(G_C - G_j) (U Dᵀ)_j + Σ_i (Γ_ij A_ij q_i + Γ'_ij B_ij a_i)      dk_j: the same with V, A' and B'
//! dG = q dq + a da - k dk - b db, of whose sums from a step on `a da` of the step is no part
//! ```
//!
//! A plane has 16 channels and all steps, transposed: channels are the rows of its products, so a step's factor meets operands and sums
//! in the same threads.

use cubecl::prelude::*;

use super::Form;
use super::columns::*;
use super::decays::*;
use super::near::*;
use super::product::*;
use super::row_tiles::*;
use super::scores::Sizes;
use super::squares::*;
use super::stage::rows_of;
use super::tile::*;
use crate::gpu::address::address;
use crate::gpu::full_plane::shuffle_xor;
use crate::gpu::tensor::*;

/// The products of the plane's channels of a state with a tile whose depth are the columns of the state.
#[cube]
fn of_state(
    state: u32,
    tile: u32,
    sums: &mut Array<Sums>,
    #[comptime] rows: bool,
    #[comptime] form: Form,
) {
    let len = comptime!(if rows { CHUNK } else { form.value });
    let product = comptime!(Product {
        depth: 1,
        columns: CHUNK / 16,
        len,
        rows,
        filled: Filled::All,
        storage: form.storage,
        panels: false,
    });
    clear(sums, TILES);
    let mut words = Array::<Words>::new(1usize);
    #[unroll]
    for step in 0..comptime!(form.value / 16) {
        words[0] = own_words(state, step, form);
        let at = comptime!(if rows {
            offset(len, 16 * step, 0)
        } else {
            32 * step as u32
        });
        multiply(&words, tile + at, sums, product);
    }
}

/// A cube takes a chunk of a head.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn row_gradients<F: Numeric>(
    q: &[u32],
    k: &[u32],
    v: &[u32],
    g: &[u32],
    erase: &[u32],
    write: &[u32],
    d_o: &[u32],
    added: &[u32],
    d_r: &[u32],
    states: &[u32],
    d_states: &[u32],
    scalars: &[f32],
    d_q: &mut [u32],
    d_k: &mut [u32],
    d_g: &mut [u32],
    d_erase: &mut [u32],
    d_write: &mut [u32],
    d_beta: &mut [F],
    sizes: Sizes,
    #[comptime] form: Form,
    #[define(F)] _dtype: ElemType,
) {
    if CUBE_POS >= sizes.cubes {
        terminate!();
    }
    let (key, value, storage) = comptime!((form.key, form.value, form.storage));
    let planes = comptime!(planes(form));
    let threads = comptime!(32 * planes);
    let tiles = comptime!(Tiles::new(form));
    let mut memory = Shared::<[Words]>::new_slice(comptime!(tiles.bytes as usize / 16));
    let start = shared_address(&mut memory);

    let (steps, heads) = (sizes.steps, sizes.heads);
    let chunks = steps.div_ceil(CHUNK);
    let (head, rest) = (CUBE_POS % heads, CUBE_POS / heads);
    let (chunk, sequence) = (rest % chunks, rest / chunks);
    let place = (sequence * heads + head) * chunks + chunk;
    let first = chunk * CHUNK;
    let key_heads = sizes.key_heads;
    let key_head = head / (heads / key_heads);
    let keys = rows_of(sequence, key_head, key_heads, first, steps, key, 0usize);
    let logs = rows_of(sequence, head, heads, first, steps, key, 0usize);
    let values = rows_of(sequence, head, heads, first, steps, value, 0usize);
    let columns = Rows {
        first: place * comptime!(value * CHUNK),
        stride: CHUNK.runtime(),
        there: value.runtime(),
    };
    let matrix = Rows {
        first: place * comptime!(value * key),
        stride: key.runtime(),
        there: value.runtime(),
    };
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
    end_group();
    let separate = comptime!(form.separate());
    if comptime!(separate) {
        let at = start + tiles.keys;
        load(at, address(write), &logs, CHUNK, key, threads);
        let at = start + tiles.erase;
        load(at, address(erase), &logs, CHUNK, key, threads);
    } else {
        load(start + tiles.keys, address(k), &keys, CHUNK, key, threads);
    }
    load(
        start + tiles.queries,
        address(q),
        &keys,
        CHUNK,
        key,
        threads,
    );
    load(start + tiles.logs, address(g), &logs, CHUNK, key, threads);
    load(
        start + tiles.states,
        address(states),
        &matrix,
        value,
        key,
        threads,
    );
    load(
        start + tiles.d_states,
        address(d_states),
        &matrix,
        value,
        key,
        threads,
    );
    let from = address(scalars) + u64::cast_from(place) * comptime!((form.scalars() * 4) as u64);
    load_flat(
        start + tiles.scalars,
        from,
        comptime!(form.scalars() / 4),
        threads,
    );
    end_group();
    wait_for_all_but_one();
    sync_cube();
    squares(start, v, &values, tiles, planes, false, form);
    wait_for_all();
    sync_cube();

    let mut d = Sides {
        q: Array::new(TILES),
        e: Array::new(TILES),
        k: Array::new(TILES),
    };
    let mut decays = Decays::new(TILES, separate);
    let mut sums = Array::<Sums>::new(TILES);
    let mut end = Sums::new(0.0f32);
    let mut gates = Array::<Sums>::new(comptime!(if separate { TILES } else { 1 }));
    let channel = UNIT_POS_Y as usize * 16;
    let own = rows_of(sequence, head, heads, first, steps, key, channel);
    #[unroll]
    for side in 0..comptime!(if separate { 2usize } else { 1usize }) {
        let given = comptime!(side == 1);
        if comptime!(given) {
            sync_cube();
            load(start + tiles.keys, address(k), &keys, CHUNK, key, threads);
            let at = start + tiles.added;
            load(at, address(v), &values, CHUNK, value, threads);
            end_group();
            wait_for_all();
            sync_cube();
            squares(start, v, &values, tiles, planes, true, form);
            sync_cube();
        }
        #[unroll]
        for block in 0..comptime!(CHUNK / 16) {
            let logs = own_words(start + tiles.logs, block, form);
            near_block(start, logs, &mut d, &mut decays, block, tiles, given, form);
        }
        #[unroll]
        for level in 0..2usize {
            let count = comptime!(2 << level);
            #[unroll]
            for half in 0..comptime!(TILES / (2 * count)) {
                let at = comptime!(2 * count * half);
                far_block(start, &mut d, &decays, at, count, tiles, form);
                join(&mut decays, at, at + count, count, separate);
            }
        }
        // What goes through the state after the chunk.
        of_state(
            start + tiles.d_states,
            start + tiles.added,
            &mut sums,
            !given,
            form,
        );
        #[unroll]
        for n in 0..TILES {
            let words = own_words(start + tiles.keys, comptime!(n / 2), form);
            let k = part(words, comptime!(n % 2), storage);
            let late = sums[n] * decays.to_end[n];
            end += k * late;
            d.k[n] += late;
            if comptime!(separate) {
                let gate = k * d.k[n];
                if comptime!(given) {
                    gates[n] -= gate;
                } else {
                    gates[n] = Sums::new(0.0f32) - gate;
                }
            }
        }
        if comptime!(separate && !given) {
            write_channels(&d.k, d_write, &own, form);
        }
    }

    // And through the state before it.
    of_state(
        start + tiles.states,
        start + tiles.d_o,
        &mut sums,
        false,
        form,
    );
    #[unroll]
    for n in 0..TILES {
        d.q[n] += sums[n] * decays.from_start[n];
    }
    if comptime!(form.erases()) {
        of_state(
            start + tiles.states,
            start + tiles.d_r,
            &mut sums,
            true,
            form,
        );
        #[unroll]
        for n in 0..TILES {
            if comptime!(separate) {
                d.e[n] += sums[n] * decays.before[n];
            } else {
                d.e[n] -= sums[n] * decays.from_start[n];
            }
        }
    }
    let mut kept = Sums::new(0.0f32);
    #[unroll]
    for step in 0..comptime!(value / 16) {
        let x = own_words(start + tiles.states, step, form);
        let y = own_words(start + tiles.d_states, step, form);
        #[unroll]
        for n in 0..2usize {
            kept += part(x, n, storage) * part(y, n, storage);
        }
    }
    let end = of_channels(end) + decays.whole[0] * of_channels(kept);

    #[unroll]
    for n in 0..TILES {
        let block = comptime!(n / 2);
        let k = part(
            own_words(start + tiles.keys, block, form),
            comptime!(n % 2),
            storage,
        );
        let q = part(
            own_words(start + tiles.queries, block, form),
            comptime!(n % 2),
            storage,
        );
        let mut gate = q * d.q[n];
        if comptime!(separate) {
            let words = own_words(start + tiles.erase, block, form);
            let erase = part(words, comptime!(n % 2), storage);
            gate += gates[n] + erase * d.e[n];
        } else {
            gate -= k * d.k[n];
        }
        if comptime!(form.erases() && !separate) {
            let met = k * d.e[n];
            let betas = of_steps(start + tiles.scalars, 0usize, n);
            gate += betas * met;
            d.k[n] += betas * d.e[n];
            let to = start + tiles.met + UNIT_POS_Y * comptime!((CHUNK * 4) as u32);
            let (mut x, mut y) = (
                met.extract(0usize) + met.extract(2usize),
                met.extract(1usize) + met.extract(3usize),
            );
            #[unroll]
            for i in 2..5usize {
                x += shuffle_xor(x, comptime!(1u32 << i));
                y += shuffle_xor(y, comptime!(1u32 << i));
            }
            if UNIT_POS_X < 4 {
                let to = to + UNIT_POS_X * 8 + comptime!((8 * n * 4) as u32);
                put_word(to, u32::reinterpret(x));
                put_word(to + 4, u32::reinterpret(y));
            }
        }
        sums[n] = gate;
    }
    sums_from(&mut sums, end);
    if comptime!(separate) {
        #[unroll]
        for n in 0..TILES {
            let words = own_words(start + tiles.erase, comptime!(n / 2), form);
            sums[n] -= part(words, comptime!(n % 2), storage) * d.e[n];
        }
        write_channels(&d.e, d_erase, &own, form);
    }
    if comptime!(form.reset) {
        // The decay of a state that does not count.
        #[unroll]
        for n in 0..TILES {
            sums[n] *= of_steps(start + tiles.scalars + comptime!(form.keeps()), 0usize, n);
        }
    }
    write_channels(&d.q, d_q, &own, form);
    write_channels(&d.k, d_k, &own, form);
    write_channels(&sums, d_g, &own, form);
    if comptime!(form.erases() && !separate) {
        sync_cube();
        let step = UNIT_POS;
        if step < comptime!(CHUNK as u32) && first + (step as usize) < steps {
            let mut sum = number_at(start + tiles.of_values + step * 4);
            #[unroll]
            for plane in 0..planes {
                sum +=
                    number_at(start + tiles.met + step * 4 + comptime!((plane * CHUNK * 4) as u32));
            }
            d_beta[(sequence * steps + first + step as usize) * heads + head] = F::cast_from(sum);
        }
    }
}
