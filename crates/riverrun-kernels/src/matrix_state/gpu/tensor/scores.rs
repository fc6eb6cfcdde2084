//! What a chunk needs of its keys and queries alone: `P = q Γ kᵀ`, the inverse of `1 + β k Γ kᵀ`, and the decays from its start and
//! to its end.

use std::f32::consts::LOG2_E;

use cubecl::prelude::*;

use super::Form;
use super::inverse::{VECTORS, invert, put_pair, write_inverse};
use super::product::*;
use super::tile::*;
use crate::gpu::address::address;
use crate::gpu::full_plane::shuffle;
use crate::gpu::math::exp2_ptx;
use crate::gpu::storage::pair;
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

/// A cube takes a chunk of a key head, and one after another the heads that share it.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn chunk_scores<F: Numeric>(
    q: &[u32],
    k: &[u32],
    g: &[F],
    beta: &[F],
    reset: &[F],
    inverse: &mut [u32],
    scores: &mut [u32],
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
    let mut sums = Shared::<[f32]>::new_slice(CHUNK);
    let mut betas = Shared::<[f32]>::new_slice(CHUNK);
    let mut resets = Shared::<[f32]>::new_slice(comptime!(if form.reset { CHUNK } else { 1 }));

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
    wait_for_all();
    sync_cube();

    let depth = comptime!(key / 16);
    let own = UNIT_POS_Y * comptime!(offset(key, 16, 0)) + own_row(comptime!(pitch(key)));
    let product = comptime!(Product {
        depth,
        columns: CHUNK / 16,
        len: key,
        rows: false,
        filled: Filled::All,
        storage,
        panels: false,
    });
    let tiles = comptime!(CHUNK / 8);
    let mut a = Array::<Words>::new(depth);
    let mut read = Array::<Sums>::new(tiles);
    let mut met = Array::<Sums>::new(tiles);
    clear(&mut read, tiles);
    clear(&mut met, tiles);
    #[unroll]
    for step in 0..depth {
        a[step] = blocks(queries + own + comptime!(step as u32 * 32));
    }
    multiply(&a, keys, &mut read, product);
    if comptime!(form.erases()) {
        #[unroll]
        for step in 0..depth {
            a[step] = blocks(keys + own + comptime!(step as u32 * 32));
        }
        multiply(&a, keys, &mut met, product);
    }

    let lane = UNIT_POS_X as usize;
    let group = sizes.heads / sizes.key_heads;
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
            resets[2 * lane] = reset_0;
            resets[2 * lane + 1] = reset_1;
        }
    }
    for member in 0..group {
        let head = key_head * group + member;
        let place = (sequence * sizes.heads + head) * chunks + chunk;
        let (mut g_0, mut g_1) = (0.0f32.runtime(), 0.0f32.runtime());
        let (mut beta_0, mut beta_1) = (0.0f32.runtime(), 0.0f32.runtime());
        #[unroll]
        for n in 0..2usize {
            let t = first + 2 * lane + n;
            let row = (sequence * sizes.steps + t.min(sizes.steps - 1)) * sizes.heads + head;
            let there = t < sizes.steps;
            if comptime!(form.logs) {
                let log = select(there, f32::cast_from(g[row]), 0.0f32);
                // A positive decay is not a number, from its step on.
                let log = select(log > 0.0f32, (0.0f32 - log).sqrt(), log * LOG2_E);
                if comptime!(n == 0) {
                    g_0 = log;
                } else {
                    g_1 = log;
                }
            }
            if comptime!(form.erases()) {
                let factor = select(there, f32::cast_from(beta[row]), 0.0f32);
                if comptime!(n == 0) {
                    beta_0 = factor;
                } else {
                    beta_1 = factor;
                }
            }
        }
        let (sum_0, sum_1) = sums_up_to(g_0, g_1);
        let end = shuffle(sum_1, 31u32);
        if UNIT_POS_Y == 0 {
            sums[2 * lane] = sum_0;
            sums[2 * lane + 1] = sum_1;
            betas[2 * lane] = beta_0;
            betas[2 * lane + 1] = beta_1;
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
            let (sum, factor) = (sums[i], betas[i]);
            #[unroll]
            for n in 0..tiles {
                let j = comptime!(8 * n) + lane % 4 * 2;
                let (mut left, mut right) = (1.0f32.runtime(), 1.0f32.runtime());
                if comptime!(form.gate) {
                    left = exp2_ptx(sum - sums[j]);
                    right = exp2_ptx(sum - sums[j + 1]);
                }
                if comptime!(form.reset) {
                    let (since, j) = (resets[i], f32::cast_from(j));
                    left = select(j >= since, left, 0.0f32);
                    right = select(j + 1.0f32 >= since, right, 0.0f32);
                }
                let (x, y) = comptime!((2 * half, 2 * half + 1));
                let products = read[n];
                let low = select(j <= i, products.extract(x) * left, 0.0f32);
                let high = select(j < i, products.extract(y) * right, 0.0f32);
                let at = (place * CHUNK + i) * comptime!(CHUNK / 2);
                scores[at + j / 2] = pair(low, high, storage);
                if comptime!(form.erases()) {
                    let products = met[n];
                    let low = select(j < i, products.extract(x) * left * factor, 0.0f32);
                    let high = select(j + 1 < i, products.extract(y) * right * factor, 0.0f32);
                    put_pair(keys, i, j, low, high);
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
