//! What a chunk needs of its keys and queries where each row of the state has a decay of its own: `P`, the inverse of `1 + A`, and the
//! keys and queries with their decays from the chunk's start and to its end.
//!
//! ```text
//! P_ij = Σ_c q_ic k_jc e^(G_ic - G_jc)   (j ≤ i)      A_ij = β_i Σ_c k_ic k_jc e^(G_ic - G_jc)   (j < i)
//! ```
//!
//! Where the erase has vectors of its own, `a` that reads and `b` that is written, a launch takes `b` for the keys, and another one the
//! keys that are `given`:
//!
//! ```text
//! P_ij = Σ_c q_ic b_jc e^(G_ic - G_jc)   (j ≤ i)      A_ij = -Σ_c a_ic b_jc e^(G_(i-1)c - G_jc)   (j < i)
//! ```
//!
//! A plane has 16 steps. The products of pairs in it have both operands in the thread's registers; those with steps of other planes
//! take the keys of these from shared memory.

use cubecl::prelude::*;

use super::Form;
use super::decays::*;
use super::inverse::{VECTORS, invert, put_pair, write_inverse};
use super::row_fetch::{Own, fetch, waiting_vectors};
use super::row_products::*;
use super::rows::over_four;
use super::scores::{PLANES, Sizes};
use super::tile::*;
use crate::gpu::address::address;
use crate::gpu::full_plane::shuffle_xor;
use crate::gpu::storage::pair;
use crate::gpu::tensor::*;

/// A cube takes a chunk of a head. `from_start_q`, `from_start_e`, `to_end_k`: the queries, what reads for the erase and the keys, times
/// their decays, `[.., CHUNK, K]`. `scalars`: `β`, then the decays over the chunk. Where the keys are `given`, `inverse` is the product
/// of what reads for the erase with them, and `from_start_q`, `from_start_e` and `scalars` are not written.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn row_scores<F: Numeric>(
    q: &[u32],
    k: &[u32],
    g: &[u32],
    erase: &[u32],
    beta: &[F],
    reset: &[F],
    inverse: &mut [Vector<u32, Const<2>>],
    scores: &mut [u32],
    scalars: &mut [f32],
    from_start_q: &mut [Words],
    from_start_e: &mut [Words],
    to_end_k: &mut [Words],
    sizes: Sizes,
    #[comptime] form: Form,
    #[comptime] given: bool,
    #[define(F)] _dtype: ElemType,
) {
    if CUBE_POS >= sizes.cubes {
        terminate!();
    }
    let (key, storage) = comptime!((form.key, form.storage));
    let vectors = comptime!(key / 8);
    let separate = comptime!(form.separate());
    let solves = comptime!(form.erases() && !given);
    let mut squares = Shared::<[Words]>::new_slice(comptime!(if solves { VECTORS } else { 1 }));
    let matrix = shared_address(&mut squares);
    // The decays over each plane's steps, of 32 channels.
    let mut wholes = Shared::<[Sums]>::new_slice(comptime!(PLANES * 8));
    // Keys for other planes: of the first and third plane for the next, of the first two for the last two.
    let mut lent = Shared::<[Words]>::new_slice(comptime!(PLANES * 64));

    let mut waiting = Shared::<[Words]>::new_slice(comptime!(2 * waiting_vectors(form) * 128));

    let chunks = sizes.steps.div_ceil(CHUNK);
    let (head, rest) = (CUBE_POS % sizes.heads, CUBE_POS / sizes.heads);
    let (chunk, sequence) = (rest % chunks, rest / chunks);
    let place = (sequence * sizes.heads + head) * chunks + chunk;
    let key_head = head / (sizes.heads / sizes.key_heads);
    let first = chunk * CHUNK;
    let lane = UNIT_POS_X as usize;
    let plane = UNIT_POS_Y as usize;
    let upper = plane * 16 + lane / 4;
    let one = Sums::new(1.0f32);

    let step = first + upper;
    let row = sequence * sizes.steps + step.min(sizes.steps - 1);
    let own = Own {
        q: address(q),
        k: address(k),
        g: address(g),
        erase: address(erase),
        queries: (row * sizes.key_heads + key_head) * key + lane % 4 * 8,
        query_rows: 8 * sizes.key_heads * key,
        logs: (row * sizes.heads + head) * key + lane % 4 * 8,
        log_rows: 8 * sizes.heads * key,
        there: u32::cast_from(step < sizes.steps) + u32::cast_from(step + 8 < sizes.steps),
    };
    let mut keeps = Array::<Sums>::new(2usize);
    #[unroll]
    for half in 0..2usize {
        keeps[half] = one;
        if comptime!(form.reset) {
            let t = step + comptime!(8 * half);
            let row = sequence * sizes.steps + t.min(sizes.steps - 1);
            let cut = t < sizes.steps && reset[row] != F::from_int(0);
            let keep = select(cut, 0.0f32, 1.0f32);
            keeps[half] = Sums::new(keep);
            if comptime!(!given) && lane % 4 == 0 {
                let at = place * comptime!(form.scalars()) + comptime!(CHUNK + key + 8 * half);
                scalars[at + upper] = keep;
            }
        }
    }
    let start = shared_address(&mut waiting) + UNIT_POS * 16;
    fetch(start, &own, 0usize, given, form);
    end_group();

    let mut products = Products {
        q: Array::new(ALL),
        e: Array::new(ALL),
    };
    clear(&mut products.q, ALL);
    clear(&mut products.e, ALL);
    let mut dots = Array::<f32>::new(2usize);
    dots[0] = 0.0f32;
    dots[1] = 0.0f32;

    let mut own_vectors = Vectors {
        q: Array::new(2usize),
        e: Array::new(comptime!(if separate { 2usize } else { 1usize })),
        k: Array::new(2usize),
    };
    let mut decays = Decays::new(4usize, separate);
    let groups = comptime!(key / 32);
    let mut far_q = Array::<Words>::new(4usize);
    let mut far_e = Array::<Words>::new(4usize);
    for n in 0..groups {
        let size = comptime!(waiting_vectors(form) as u32 * 2048);
        if n + 1 < groups {
            let next = start + (n + 1) as u32 % 2 * size;
            fetch(next, &own, n + 1, given, form);
        }
        end_group();
        // A thread reads what it has copied itself.
        wait_for_all_but_one();
        let now = start + n as u32 % 2 * size;
        #[unroll]
        for half in 0..2usize {
            own_vectors.q[half] = words_at(now + comptime!(half as u32 * 2048));
            own_vectors.k[half] = words_at(now + comptime!((2 + half) as u32 * 2048));
            if comptime!(separate) {
                own_vectors.e[half] = words_at(now + comptime!((6 + half) as u32 * 2048));
            }
            let logs = words_at(now + comptime!((4 + half) as u32 * 2048));
            #[unroll]
            for x in 0..2usize {
                let at = comptime!(2 * x + half);
                let decay = of_logs(part(logs, x, storage)) * keeps[half];
                decays.from_start[at] = decay;
                decays.to_end[at] = one;
                decays.whole[at] = decay;
                if comptime!(separate) {
                    decays.before[at] = keeps[half];
                }
                let (q, k) = (
                    part(own_vectors.q[half], x, storage),
                    part(own_vectors.k[half], x, storage),
                );
                let products = q * k;
                dots[half] += (products.extract(0usize) + products.extract(1usize))
                    + (products.extract(2usize) + products.extract(3usize));
            }
        }
        // Halves of 1, 2 and 4 steps, then of 8.
        #[unroll]
        for level in 0..4usize {
            let mask = comptime!(4u32 << level);
            let second = UNIT_POS_X & mask != 0;
            #[unroll]
            for x in 0..2usize {
                let (mut f_0, mut f_1) = (decays.to_end[2 * x], decays.from_start[2 * x + 1]);
                if comptime!(level < 3) {
                    f_0 = chosen(second, decays.from_start[2 * x], decays.to_end[2 * x]);
                    f_1 = chosen(
                        second,
                        decays.from_start[2 * x + 1],
                        decays.to_end[2 * x + 1],
                    );
                }
                let (mut b_0, mut b_1) = (f_0, f_1);
                if comptime!(separate) {
                    b_0 = decays.before[2 * x];
                    b_1 = decays.before[2 * x + 1];
                }
                let own = scaled(&own_vectors, x, (f_0, f_1), (b_0, b_1), form);
                if comptime!(level < 3) {
                    add(
                        &mut products,
                        level,
                        &own,
                        (true, false),
                        own.k,
                        0usize,
                        form,
                    );
                    add(
                        &mut products,
                        level,
                        &own,
                        (false, true),
                        own.k,
                        1usize,
                        form,
                    );
                } else {
                    add(
                        &mut products,
                        MIDDLE,
                        &own,
                        (false, true),
                        own.k,
                        0usize,
                        form,
                    );
                    join(&mut decays, 2 * x, 2 * x + 1, 1usize, separate);
                    if lane < 4 {
                        wholes[plane * 8 + lane * 2 + x] = decays.whole[2 * x];
                    }
                }
            }
            if comptime!(level < 3) {
                #[unroll]
                for n in 0..4usize {
                    join_threads(&mut decays, n, mask, separate);
                }
            }
        }
        sync_cube();
        #[unroll]
        for x in 0..2usize {
            let at = lane % 4 * 2 + x;
            let (mut before, mut after) = (one, one);
            #[unroll]
            for other in 0..PLANES {
                let whole = wholes[at + comptime!(8 * other)];
                before *= chosen(other < plane, whole, one);
                after *= chosen(other > plane, whole, one);
            }
            // Of the plane between the step's and the middle of the chunk.
            let between_0 = chosen(plane == 0, wholes[at + 8], one);
            let between_1 = chosen(plane == 3, wholes[at + 16], one);
            #[unroll]
            for level in 0..2usize {
                let mut factors = Array::<Sums>::new(2usize);
                let mut before_step = Array::<Sums>::new(2usize);
                #[unroll]
                for half in 0..2usize {
                    let i = comptime!(2 * x + half);
                    factors[half] = if comptime!(level == 0) {
                        chosen(plane % 2 == 1, decays.from_start[i], decays.to_end[i])
                    } else {
                        let (late, early) = (
                            decays.from_start[i] * between_1,
                            decays.to_end[i] * between_0,
                        );
                        chosen(plane >= 2, late, early)
                    };
                    before_step[half] = factors[half];
                    if comptime!(separate) {
                        before_step[half] = decays.before[i];
                        if comptime!(level == 1) {
                            before_step[half] *= between_1;
                        }
                    }
                }
                let own = scaled(
                    &own_vectors,
                    x,
                    (factors[0], factors[1]),
                    (before_step[0], before_step[1]),
                    form,
                );
                let slot = if comptime!(level == 0) {
                    plane / 2
                } else {
                    plane + 2
                };
                let lends = if comptime!(level == 0) {
                    plane % 2 == 0
                } else {
                    plane < 2
                };
                if lends {
                    lent[(slot * 2 + x) * 32 + lane] = own.k;
                }
                far_q[2 * level + x] = own.q;
                far_e[2 * level + x] = own.e;
            }
            #[unroll]
            for half in 0..2usize {
                decays.from_start[2 * x + half] *= before;
                if comptime!(separate) {
                    decays.before[2 * x + half] *= before;
                }
                decays.to_end[2 * x + half] *= after;
            }
            if comptime!(!given) && UNIT_POS_Y == 0 && lane < 4 {
                let whole = decays.whole[2 * x] * after;
                let to = place * comptime!(form.scalars()) + (n * 32 + CHUNK + lane * 8 + 4 * x);
                #[unroll]
                for i in 0..4usize {
                    scalars[to + i] = whole.extract(i);
                }
            }
        }
        #[unroll]
        for half in 0..2usize {
            let at = (place * CHUNK + upper + comptime!(8 * half)) * vectors + n * 4 + lane % 4;
            let (first, second) = comptime!((half, 2 + half));
            let (q_0, q_1) = (
                part(own_vectors.q[half], 0usize, storage),
                part(own_vectors.q[half], 1usize, storage),
            );
            let (k_0, k_1) = (
                part(own_vectors.k[half], 0usize, storage),
                part(own_vectors.k[half], 1usize, storage),
            );
            if comptime!(!given) {
                let (start_0, start_1) = (decays.from_start[first], decays.from_start[second]);
                from_start_q[at] = operand(q_0 * start_0, q_1 * start_1, storage);
                if comptime!(separate) {
                    let (a_0, a_1) = (
                        part(own_vectors.e[half], 0usize, storage),
                        part(own_vectors.e[half], 1usize, storage),
                    );
                    from_start_e[at] = operand(
                        a_0 * decays.before[first],
                        a_1 * decays.before[second],
                        storage,
                    );
                } else if comptime!(form.erases()) {
                    from_start_e[at] = operand(k_0 * start_0, k_1 * start_1, storage);
                }
            }
            to_end_k[at] = operand(
                k_0 * decays.to_end[first],
                k_1 * decays.to_end[second],
                storage,
            );
        }
        sync_cube();
        #[unroll]
        for x in 0..2usize {
            if UNIT_POS_Y % 2 == 1 {
                let own = Pair {
                    q: far_q[x],
                    e: far_e[x],
                    k: far_e[x],
                };
                let b = lent[(plane / 2 * 2 + x) * 32 + lane];
                #[unroll]
                for half in 0..2usize {
                    add(
                        &mut products,
                        BEFORE + half,
                        &own,
                        (true, true),
                        b,
                        half,
                        form,
                    );
                }
            }
            if UNIT_POS_Y >= 2 {
                let own = Pair {
                    q: far_q[2 + x],
                    e: far_e[2 + x],
                    k: far_e[2 + x],
                };
                #[unroll]
                for tile in 0..4usize {
                    let b = lent[comptime!(((2 + tile / 2) * 2 + x) * 32) + lane];
                    add(
                        &mut products,
                        FIRST_HALF + tile,
                        &own,
                        (true, true),
                        b,
                        tile % 2,
                        form,
                    );
                }
            }
        }
    }

    let near_q = near(&products.q, over_four(dots[0]), over_four(dots[1]));
    let near_e = near(&products.e, 0.0f32, 0.0f32);
    #[unroll]
    for half in 0..2usize {
        let i = upper + comptime!(8 * half);
        let mut factor = 0.0f32.runtime();
        if comptime!(separate) {
            factor = -1.0f32;
        } else if comptime!(form.erases()) {
            let step = (first + i).min(sizes.steps - 1);
            let row = (sequence * sizes.steps + step) * sizes.heads + head;
            factor = select(first + i < sizes.steps, f32::cast_from(beta[row]), 0.0f32);
            if lane % 4 == 0 {
                scalars[place * comptime!(form.scalars()) + i] = factor;
            }
        }
        #[unroll]
        for n in 0..comptime!(CHUNK / 8) {
            let j = comptime!(8 * n) + lane % 4 * 2;
            let (x, y) = comptime!((2 * half, 2 * half + 1));
            let read = tile_of(&products.q, near_q, n);
            let at = (place * CHUNK + i) * comptime!(CHUNK / 2);
            scores[at + j / 2] = pair(read.extract(x), read.extract(y), storage);
            if comptime!(given) {
                let met = tile_of(&products.e, near_e, n);
                let word = pair(met.extract(x), met.extract(y), storage);
                let mut words = Vector::<u32, Const<2>>::new(word);
                let beside = shuffle_xor(f32::reinterpret(word), 1u32);
                words.insert(1usize, u32::reinterpret(beside));
                if lane % 2 == 0 {
                    inverse[(at + j / 2) / 2] = words;
                }
            } else if comptime!(form.erases()) {
                let met = tile_of(&products.e, near_e, n);
                let (low, high) = (met.extract(x) * factor, met.extract(y) * factor);
                put_pair(matrix, i, j, low, high);
            }
        }
    }
    if comptime!(solves) {
        sync_cube();
        invert(matrix);
        write_inverse(matrix, inverse, place, storage);
    }
}
