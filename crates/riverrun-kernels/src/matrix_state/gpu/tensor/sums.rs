//! The gradients of `β` and of the log decays, from the sums over the channels.

use cubecl::prelude::*;

use super::Form;
use super::gradients::SUMS;
use super::scores::Sizes;
use super::tile::CHUNK;
use crate::gpu::full_plane::{shuffle, shuffle_xor};

/// Planes of a cube.
pub(super) const PLANES: usize = 4;

/// A sum of a step over the parts of the channels.
#[cube]
fn over_parts(totals: &[f32], at: usize, #[comptime] form: Form) -> f32 {
    let mut sum = 0.0f32.runtime();
    #[unroll]
    for part in 0..comptime!(form.cubes()) {
        sum += totals[at + comptime!(part * SUMS * CHUNK)];
    }
    sum
}

/// A plane takes a chunk of a head, two steps a thread.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn chunk_sums<F: Numeric>(
    totals: &[f32],
    reset: &[F],
    d_g: &mut [F],
    d_beta: &mut [F],
    sizes: Sizes,
    #[comptime] form: Form,
    #[define(F)] _dtype: ElemType,
) {
    let chunks = sizes.steps.div_ceil(CHUNK);
    let place = CUBE_POS * PLANES + UNIT_POS_Y as usize;
    if place >= sizes.cubes {
        terminate!();
    }
    let (lane, chunk) = (place / chunks, place % chunks);
    let (sequence, head) = (lane / sizes.heads, lane % sizes.heads);
    let step = chunk * CHUNK + 2 * UNIT_POS_X as usize;
    let row = (sequence * sizes.steps + step) * sizes.heads + head;
    let at = place * comptime!(form.cubes() * SUMS * CHUNK) + 2 * UNIT_POS_X as usize;
    if comptime!(form.logs) {
        let d_0 = over_parts(totals, at, form);
        let d_1 = over_parts(totals, at + 1, form);
        let mut end = over_parts(totals, at + CHUNK, form)
            + over_parts(totals, at + comptime!(CHUNK + 1), form);
        #[unroll]
        for i in 0..5usize {
            end += shuffle_xor(end, comptime!(1u32 << i));
        }
        // Sums from the thread's steps to the end.
        let mut sum = d_0 + d_1;
        #[unroll]
        for i in 0..5usize {
            let far = comptime!(1u32 << i);
            let later = shuffle(sum, (UNIT_POS_X + far) % 32);
            sum += select(UNIT_POS_X + far < 32, later, 0.0f32);
        }
        let after = shuffle(sum, (UNIT_POS_X + 1) % 32);
        let after = select(UNIT_POS_X < 31, after, 0.0f32);
        let (mut first, mut second) = (sum + end, after + d_1 + end);
        if comptime!(form.reset) {
            // The decay of a state that does not count.
            let (at, last) = (sequence * sizes.steps, sizes.steps - 1);
            let zero = F::from_int(0);
            first = select(reset[at + step.min(last)] != zero, 0.0f32, first);
            second = select(reset[at + (step + 1).min(last)] != zero, 0.0f32, second);
        }
        if step < sizes.steps {
            d_g[row] = F::cast_from(first);
        }
        if step + 1 < sizes.steps {
            d_g[row + sizes.heads] = F::cast_from(second);
        }
    }
    if comptime!(form.erases()) {
        #[unroll]
        for n in 0..2usize {
            let met = over_parts(totals, at + comptime!(2 * CHUNK + n), form);
            let of_values = over_parts(totals, at + comptime!(3 * CHUNK + n), form)
                + over_parts(totals, at + comptime!(4 * CHUNK + n), form);
            if step + n < sizes.steps {
                d_beta[row + n * sizes.heads] = F::cast_from(met + of_values);
            }
        }
    }
}
