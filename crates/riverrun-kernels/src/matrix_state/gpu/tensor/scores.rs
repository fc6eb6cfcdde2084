//! What a chunk needs of its keys and queries alone: `P = q Γ kᵀ`, the inverse of `1 + β k Γ kᵀ`, and the decays from its start and
//! to its end.

use std::f32::consts::LOG2_E;

use cubecl::prelude::*;

use super::Form;
use super::inverse::{VECTORS, invert, put_four, write_inverse};
use super::tile::*;
use crate::gpu::address::address;
use crate::gpu::full_plane::shuffle;
use crate::gpu::math::exp2_ptx;
use crate::gpu::mma::multiply_add;
use crate::gpu::tensor::*;

/// Planes of a cube: each has 16 steps.
pub(super) const PLANES: usize = CHUNK / 16;

/// Rows of `f32` of a chunk in the buffer of scalars: `G` to base 2, `e^G`, `β`, `e^(G_C - G)`, and with resets the last one up to the
/// step, -1 where there is none. `e^G` is 0 where the state before the chunk does not count, `e^(G_C - G)` where the step does not
/// count for the state after it.
pub(super) const SCALARS: usize = 5;

/// Sizes that are known at launch.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Sizes {
    pub steps: usize,
    pub heads: usize,
    pub key_heads: usize,
    pub cubes: usize,
    /// Segments of each sequence.
    pub segments: usize,
    /// Chunks of a segment; the last one may have fewer.
    pub segment: usize,
}

/// The sums of two numbers a thread over the threads of a plane up to its own: before it, after its first, after its second.
#[cube]
fn sums_up_to(first: f32, second: f32) -> (f32, f32) {
    let lane = UNIT_POS_X;
    let mut sum = first + second;
    #[unroll]
    for i in 0..5usize {
        let far = comptime!(1u32 << i);
        let other = shuffle(sum, (lane + comptime!(32 - far)) % 32);
        sum += select(lane >= far, other, 0.0f32);
    }
    let before = select(lane > 0, shuffle(sum, (lane + 31) % 32), 0.0f32);
    (before + first, before + (first + second))
}

/// The largest of two numbers a thread over the threads of a plane up to its own: up to its first, up to its second.
#[cube]
fn largest_up_to(first: f32, second: f32) -> (f32, f32) {
    let lane = UNIT_POS_X;
    let mut largest = first.max(second);
    #[unroll]
    for i in 0..5usize {
        let far = comptime!(1u32 << i);
        let other = shuffle(largest, (lane + comptime!(32 - far)) % 32);
        largest = largest.max(select(lane >= far, other, -1.0f32));
    }
    let before = select(lane > 0, shuffle(largest, (lane + 31) % 32), -1.0f32);
    (before.max(first), largest)
}

/// The decays and `β` of the thread's two steps of a chunk that begins at step `first`: two logarithms to base 2, then two `β`.
#[cube]
fn factors_of<F: Numeric>(
    g: &[F],
    beta: &[F],
    sequence: usize,
    first: usize,
    head: usize,
    sizes: &Sizes,
    #[comptime] form: Form,
) -> Sums {
    let mut factors = Sums::new(0.0f32);
    #[unroll]
    for n in 0..2usize {
        let t = first + 2 * UNIT_POS_X as usize + n;
        let row = (sequence * sizes.steps + t.min(sizes.steps - 1)) * sizes.heads + head;
        let there = t < sizes.steps;
        if comptime!(form.logs) {
            let log = select(there, f32::cast_from(g[row]), 0.0f32);
            // A positive decay is not a number, from its step on.
            let log = select(log > 0.0f32, (0.0f32 - log).sqrt(), log * LOG2_E);
            factors.insert(n, log);
        }
        if comptime!(form.erases()) {
            let factor = select(there, f32::cast_from(beta[row]), 0.0f32);
            factors.insert(comptime!(n + 2), factor);
        }
    }
    factors
}

/// Writes the values of the thread's two steps to shared memory, one value a step.
#[cube]
fn put_two(row: u32, first: f32, second: f32) {
    let at = row + UNIT_POS_X * 8;
    put_word(at, u32::reinterpret(first));
    put_word(at + 4, u32::reinterpret(second));
}

/// Bytes from the start of a tile to the row that the thread passes to [`blocks`] for 16 columns of `B`, permuted so that a thread's
/// sums are neighbours after [`order_steps`]. Every eight rows lie in different banks.
#[cube]
fn own_steps(#[comptime] pitch: usize) -> u32 {
    let (column, tile) = (UNIT_POS_X % 8, UNIT_POS_X / 16);
    let later = (column / 4 + tile) % 2;
    let row = column / 2 * 4 + later * 2 + column % 2;
    (row * comptime!(pitch as u32) + UNIT_POS_X / 8 % 2) * 16
}

/// Reorders a product whose columns were read by [`own_steps`]: for every 16 columns, the thread's four neighbouring columns of its
/// upper row, then of its lower row.
#[cube]
fn order_steps(sums: &mut Array<Sums>) {
    let turned = UNIT_POS_X % 4 >= 2;
    #[unroll]
    for n in 0..comptime!(CHUNK / 16) {
        let (first, second) = (sums[comptime!(2 * n)], sums[comptime!(2 * n + 1)]);
        #[unroll]
        for half in 0..2usize {
            let mut four = Sums::new(0.0f32);
            #[unroll]
            for x in 0..2usize {
                let (a, b) = (
                    first.extract(comptime!(2 * half + x)),
                    second.extract(comptime!(2 * half + x)),
                );
                four.insert(x, select(turned, b, a));
                four.insert(comptime!(x + 2), select(turned, a, b));
            }
            sums[comptime!(2 * n + half)] = four;
        }
    }
}

/// A cube takes a chunk of a key head, and one after another the heads that share it.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn chunk_scores<F: Numeric>(
    q: &[u32],
    k: &[u32],
    g: &[F],
    beta: &[F],
    reset: &[F],
    inverse: &mut [Vector<u32, Const<2>>],
    scores: &mut [Vector<u32, Const<2>>],
    scalars: &mut [f32],
    sizes: Sizes,
    #[comptime] form: Form,
    #[define(F)] _dtype: ElemType,
) {
    if CUBE_POS >= sizes.cubes {
        terminate!();
    }
    let (key, storage) = comptime!((form.key, form.storage));
    let threads = comptime!(32 * PLANES);
    // The tiles, and after them the matrix and its inverse.
    let mut memory = Shared::<[Words]>::new_slice(comptime!({
        let tiles = 2 * bytes(CHUNK, key) as usize / 16;
        if form.erases() {
            tiles.max(VECTORS)
        } else {
            tiles
        }
    }));
    // For each step: the sum of the logarithms up to it, `β`, and the last reset up to it.
    let mut of_steps = Shared::<[Words]>::new_slice(comptime!(3 * CHUNK / 4));
    let sums = shared_address(&mut of_steps);
    let betas = sums + comptime!((4 * CHUNK) as u32);
    let resets = betas + comptime!((4 * CHUNK) as u32);

    let chunks = sizes.steps.div_ceil(CHUNK);
    let (key_head, rest) = (CUBE_POS % sizes.key_heads, CUBE_POS / sizes.key_heads);
    let (chunk, sequence) = (rest % chunks, rest / chunks);
    let first = chunk * CHUNK;
    let rows = Rows {
        first: ((sequence * sizes.steps + first) * sizes.key_heads + key_head) * key,
        stride: sizes.key_heads * key,
        there: (sizes.steps - first).min(CHUNK),
    };
    let keys = shared_address(&mut memory);
    let queries = keys + comptime!(bytes(CHUNK, key));
    load(keys, address(k), &rows, CHUNK, key, threads);
    load(queries, address(q), &rows, CHUNK, key, threads);
    end_group();
    let group = sizes.heads / sizes.key_heads;
    // While the tiles come, and later those of the next head while the one before is worked on.
    let before = factors_of(g, beta, sequence, first, key_head * group, &sizes, form);
    wait_for_all();
    sync_cube();

    let tiles = comptime!(CHUNK / 8);
    let mut read = Array::<Sums>::new(tiles);
    let mut met = Array::<Sums>::new(tiles);
    clear(&mut read, tiles);
    clear(&mut met, tiles);
    let own = UNIT_POS_Y * comptime!(offset(key, 16, 0)) + own_row(comptime!(pitch(key)));
    let columns = keys + own_steps(comptime!(pitch(key)));
    #[unroll]
    for step in 0..comptime!(key / 16) {
        let depth = comptime!(step as u32 * 32);
        let q = value_of(blocks(queries + own + depth));
        let k = value_of(blocks(keys + own + depth));
        #[unroll]
        for n in 0..comptime!(CHUNK / 16) {
            let b = blocks(columns + comptime!(offset(key, 16 * n, 2 * step)));
            #[unroll]
            for half in 0..2usize {
                let (tile, i) = comptime!((2 * n + half, 2 * half));
                let (low, high) = (b.extract(i), b.extract(comptime!(i + 1)));
                read[tile] = multiply_add(q, low, high, read[tile], storage);
                if comptime!(form.erases()) {
                    met[tile] = multiply_add(k, low, high, met[tile], storage);
                }
            }
        }
    }
    order_steps(&mut read);
    if comptime!(form.erases()) {
        order_steps(&mut met);
    }

    let lane = UNIT_POS_X as usize;
    let upper = UNIT_POS_Y as usize * 16 + lane / 4;
    let (mut reset_0, mut reset_1) = (-1.0f32.runtime(), -1.0f32.runtime());
    let mut reset_end = -1.0f32.runtime();
    if comptime!(form.reset) {
        let t = first + 2 * lane;
        let last = sizes.steps - 1;
        let row = sequence * sizes.steps;
        let at = f32::cast_from(2 * lane);
        let (zero, none) = (F::from_int(0), -1.0f32);
        let own_0 = select(t <= last && reset[row + t.min(last)] != zero, at, none);
        let t = t + 1;
        let own_1 = select(
            t <= last && reset[row + t.min(last)] != zero,
            at + 1.0f32,
            none,
        );
        let (largest_0, largest_1) = largest_up_to(own_0, own_1);
        reset_0 = largest_0;
        reset_1 = largest_1;
        reset_end = shuffle(largest_1, 31u32);
        if UNIT_POS_Y == 0 {
            put_two(resets, reset_0, reset_1);
        }
    }
    let mut given = before;
    for member in 0..group {
        let head = key_head * group + member;
        let place = (sequence * sizes.heads + head) * chunks + chunk;
        let factors = given;
        if member + 1 < group {
            given = factors_of(g, beta, sequence, first, head + 1, &sizes, form);
        }
        let (beta_0, beta_1) = (factors.extract(2usize), factors.extract(3usize));
        let (sum_0, sum_1) = sums_up_to(factors.extract(0usize), factors.extract(1usize));
        let end = shuffle(sum_1, 31u32);
        if UNIT_POS_Y == 0 {
            put_two(sums, sum_0, sum_1);
            put_two(betas, beta_0, beta_1);
            let at = place * comptime!(SCALARS * CHUNK) + 2 * lane;
            scalars[at] = sum_0;
            scalars[at + 1] = sum_1;
            let (mut start_0, mut start_1) = (exp2_ptx(sum_0), exp2_ptx(sum_1));
            let (mut end_0, mut end_1) = (exp2_ptx(end - sum_0), exp2_ptx(end - sum_1));
            if comptime!(form.reset) {
                let step = f32::cast_from(2 * lane);
                start_0 = select(reset_0 < 0.0f32, start_0, 0.0f32);
                start_1 = select(reset_1 < 0.0f32, start_1, 0.0f32);
                end_0 = select(step >= reset_end, end_0, 0.0f32);
                end_1 = select(step + 1.0f32 >= reset_end, end_1, 0.0f32);
                scalars[at + comptime!(4 * CHUNK)] = reset_0;
                scalars[at + comptime!(4 * CHUNK + 1)] = reset_1;
            }
            scalars[at + CHUNK] = start_0;
            scalars[at + comptime!(CHUNK + 1)] = start_1;
            scalars[at + comptime!(2 * CHUNK)] = beta_0;
            scalars[at + comptime!(2 * CHUNK + 1)] = beta_1;
            scalars[at + comptime!(3 * CHUNK)] = end_0;
            scalars[at + comptime!(3 * CHUNK + 1)] = end_1;
        }
        sync_cube();
        #[unroll]
        for half in 0..2usize {
            let i = upper + comptime!(8 * half);
            let sum = number_at(sums + i as u32 * 4);
            let factor = number_at(betas + i as u32 * 4);
            #[unroll]
            for n in 0..comptime!(CHUNK / 16) {
                let j = comptime!(16 * n) + lane % 4 * 4;
                let mut decays = Sums::new(1.0f32);
                if comptime!(form.gate) {
                    let to = Sums::reinterpret(words_at(sums + j as u32 * 4));
                    #[unroll]
                    for x in 0..4usize {
                        decays.insert(x, exp2_ptx(sum - to.extract(x)));
                    }
                }
                if comptime!(form.reset) {
                    let since = number_at(resets + i as u32 * 4);
                    #[unroll]
                    for x in 0..4usize {
                        let there = f32::cast_from(j + x) >= since;
                        decays.insert(x, select(there, decays.extract(x), 0.0f32));
                    }
                }
                let tile = comptime!(2 * n + half);
                let mut four = read[tile] * decays;
                #[unroll]
                for x in 0..4usize {
                    four.insert(x, select(j + x <= i, four.extract(x), 0.0f32));
                }
                let at = (place * CHUNK + i) * comptime!(CHUNK / 4) + j / 4;
                scores[at] = pairs(four, storage);
                if comptime!(form.erases()) {
                    put_four(keys, i, j, met[tile] * decays * Sums::new(factor));
                }
            }
        }
        if comptime!(form.erases()) {
            sync_cube();
            invert(keys);
            write_inverse(keys, inverse, place, storage);
        }
        sync_cube();
    }
}
