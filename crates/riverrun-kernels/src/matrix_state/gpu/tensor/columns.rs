//! Sixteen columns of a plane, transposed: of a state, whose columns are then its rows, or of values, whose columns are then steps.

use cubecl::prelude::*;

use super::Form;
use super::row_tiles::TILES;
use super::rows::over_four;
use super::tile::*;
use crate::gpu::full_plane::shuffle_xor;
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
    let two = numbers_at(place);
    by_step(two.extract(0usize), two.extract(1usize))
}

/// Multiplies the rows of a state by their decays over the chunk.
#[cube]
pub(super) fn decay_rows(state: &mut Array<Sums>, scalars: u32, #[comptime] form: Form) {
    #[unroll]
    for n in 0..comptime!(form.key / 8) {
        state[n] *= of_steps(scalars, 1usize, n);
    }
}

/// Sums over the steps of the thread's two rows, of which it has some.
#[cube]
pub(super) fn of_channels(sums: Sums) -> Sums {
    let upper = over_four(sums.extract(0usize) + sums.extract(1usize));
    let lower = over_four(sums.extract(2usize) + sums.extract(3usize));
    let mut all = Sums::new(upper);
    all.insert(2usize, lower);
    all.insert(3usize, lower);
    all
}

/// Replaces numbers of steps by their sums from the step to the last, and `end`, what comes after that.
#[cube]
pub(super) fn sums_from(sums: &mut Array<Sums>, end: Sums) {
    let lane = UNIT_POS_X % 4;
    let mut after = Array::<f32>::new(2usize);
    after[0] = end.extract(0usize);
    after[1] = end.extract(2usize);
    #[unroll]
    for n in 0..TILES {
        let n = comptime!(TILES - 1 - n);
        let mut numbers = sums[n];
        #[unroll]
        for channel in 0..2usize {
            let (x, y) = comptime!((2 * channel, 2 * channel + 1));
            let own = numbers.extract(x) + numbers.extract(y);
            let beside = shuffle_xor(own, 1u32);
            let two = own + beside;
            let others = shuffle_xor(two, 2u32);
            let later = select(lane % 2 == 0, beside, 0.0f32) + select(lane < 2, others, 0.0f32);
            let second = numbers.extract(y) + (later + after[channel]);
            let first = numbers.extract(x) + second;
            numbers.insert(x, first);
            numbers.insert(y, second);
            after[channel] += two + others;
        }
        sums[n] = numbers;
    }
}

/// Writes sums whose rows are the plane's 16 channels, and whose columns are steps.
#[cube]
pub(super) fn write_channels(
    sums: &Array<Sums>,
    x: &mut [u32],
    rows: &Rows,
    #[comptime] form: Form,
) {
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

/// Writes them, of a matrix of `columns` columns.
#[cube]
pub(super) fn write_state(
    state: &Array<Sums>,
    x: &mut [f32],
    at: usize,
    #[comptime] columns: usize,
    #[comptime] form: Form,
) {
    let lane = UNIT_POS_X as usize;
    #[unroll]
    for n in 0..comptime!(form.key / 8) {
        let numbers = state[n];
        let row = comptime!(8 * n) + lane % 4 * 2;
        let place = at + row * columns + lane / 4;
        x[place] = numbers.extract(0usize);
        x[place + columns] = numbers.extract(1usize);
        x[place + 8] = numbers.extract(2usize);
        x[place + columns + 8] = numbers.extract(3usize);
    }
}
