//! Sixteen steps of a plane: products whose rows are steps.

use cubecl::prelude::*;

use super::Form;
use super::gradients::CUBES;
use super::tile::*;
use crate::gpu::full_plane::shuffle_xor;
use crate::gpu::math::exp2_ptx;
use crate::gpu::storage::pair;
use crate::gpu::tensor::*;

/// Where a thread's steps and channels are.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Own {
    /// The first of the plane's 16 steps, in the chunk.
    pub step: u32,
    /// The first channel of the cube.
    pub channel: usize,
    pub scalars: u32,
}

/// A scalar of a step.
#[cube]
pub(super) fn scalar(own: &Own, #[comptime] row: usize, step: u32) -> f32 {
    number_at(own.scalars + (step + comptime!((row * CHUNK) as u32)) * 4)
}

/// A scalar for each row of a product that the thread has.
#[cube]
pub(super) fn of_rows(own: &Own, #[comptime] row: usize) -> Sums {
    let step = own.step + UNIT_POS_X / 4;
    let (upper, lower) = (scalar(own, row, step), scalar(own, row, step + 8));
    let mut numbers = Sums::new(upper);
    numbers.insert(2usize, lower);
    numbers.insert(3usize, lower);
    numbers
}

/// Turns a product of steps and steps into the operand of the next. Rows are the plane's steps; they come `later` than the columns
/// where those count, or the other way round; with `strict`, not the same step.
#[cube]
pub(super) fn decayed(
    sums: &Array<Sums>,
    words: &mut Array<Words>,
    own: &Own,
    #[comptime] later: bool,
    #[comptime] strict: bool,
    #[comptime] erased: bool,
    #[comptime] form: Form,
) {
    let lane = UNIT_POS_X;
    let mut all = Array::<Sums>::new(comptime!(CHUNK / 8));
    #[unroll]
    for n in 0..comptime!(CHUNK / 8) {
        let mut numbers = sums[n];
        #[unroll]
        for part in 0..4usize {
            let row = own.step + lane / 4 + comptime!((part / 2 * 8) as u32);
            let column = comptime!((8 * n + part % 2) as u32) + lane % 4 * 2;
            let (to, from) = if comptime!(later) {
                (row, column)
            } else {
                (column, row)
            };
            let mut factor = 1.0f32.runtime();
            if comptime!(form.gate) {
                factor = exp2_ptx(scalar(own, 0usize, to) - scalar(own, 0usize, from));
            }
            if comptime!(form.reset) {
                let counts = f32::cast_from(from) >= scalar(own, 4usize, to);
                factor = select(counts, factor, 0.0f32);
            }
            if comptime!(strict) {
                factor = 0.0f32 - factor;
            }
            if comptime!(erased) {
                factor *= scalar(own, 2usize, to);
            }
            let counts = if comptime!(strict) {
                to > from
            } else {
                to >= from
            };
            let number = select(counts, numbers.extract(part) * factor, 0.0f32);
            numbers.insert(part, number);
        }
        all[n] = numbers;
    }
    #[unroll]
    for step in 0..comptime!(CHUNK / 16) {
        words[step] = operand(
            all[comptime!(2 * step)],
            all[comptime!(2 * step + 1)],
            form.storage,
        );
    }
}

/// Products of the thread's rows with those of a tile of the same steps.
#[cube]
pub(super) fn dots(sums: &Array<Sums>, tile: u32, own: &Own, #[comptime] form: Form) -> (f32, f32) {
    let len = comptime!(form.key / CUBES);
    let row = (own.step + UNIT_POS_X / 4) * comptime!(offset(len, 1, 0));
    let at = tile + row + UNIT_POS_X % 4 * 4;
    let (mut upper, mut lower) = (0.0f32.runtime(), 0.0f32.runtime());
    #[unroll]
    for n in 0..comptime!(len / 8) {
        let numbers = sums[n];
        let place = at + comptime!(16 * n as u32);
        let first = halves(word_at(place), form.storage);
        let second = halves(word_at(place + comptime!(offset(len, 8, 0))), form.storage);
        upper += numbers.extract(0usize) * first.extract(0usize)
            + numbers.extract(1usize) * first.extract(1usize);
        lower += numbers.extract(2usize) * second.extract(0usize)
            + numbers.extract(3usize) * second.extract(1usize);
    }
    (over_four(upper), over_four(lower))
}

/// The sum over the four threads of a row.
#[cube]
pub(super) fn over_four(x: f32) -> f32 {
    let y = x + shuffle_xor(x, 1u32);
    y + shuffle_xor(y, 2u32)
}

/// Writes the plane's rows of the cube's channels of a gradient.
#[cube]
pub(super) fn write_rows(
    sums: &Array<Sums>,
    x: &mut [u32],
    rows: &Rows,
    own: &Own,
    #[comptime] form: Form,
) {
    let lane = UNIT_POS_X as usize;
    let first = own.step as usize + lane / 4;
    let column = own.channel + lane % 4 * 2;
    #[unroll]
    for half in 0..2usize {
        let row = first + comptime!(8 * half);
        let start = (rows.first + row * rows.stride + column) / 2;
        if row < rows.there {
            #[unroll]
            for n in 0..comptime!(form.key / CUBES / 8) {
                let numbers = sums[n];
                let left = numbers.extract(comptime!(2 * half));
                let right = numbers.extract(comptime!(2 * half + 1));
                x[start + comptime!(4 * n)] = pair(left, right, form.storage);
            }
        }
    }
}
