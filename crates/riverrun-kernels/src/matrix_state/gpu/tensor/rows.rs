//! Sixteen steps of a plane: products whose rows are steps.

use cubecl::prelude::*;

use super::Form;
use super::results::write_operands;
use super::tile::*;
use crate::gpu::full_plane::shuffle_xor;
use crate::gpu::math::exp2_ptx;
use crate::gpu::tensor::*;

/// Where a thread's steps and channels are.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Own {
    /// The first of the plane's 16 steps, in the chunk.
    pub step: u32,
    /// The first channel of the cube.
    pub channel: usize,
    pub scalars: u32,
    /// The plane's own shared memory.
    pub memory: u32,
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

/// Scalars of two steps.
#[derive(CubeType)]
struct Pair {
    logs: Array<f32>,
    resets: Array<f32>,
    betas: Array<f32>,
}

/// Those of a step and of the one `apart` further on; of the `later` of two steps the last reset counts, and `β` where it is asked for.
#[cube]
fn pair_of(
    own: &Own,
    step: u32,
    apart: u32,
    #[comptime] later: bool,
    #[comptime] erased: bool,
    #[comptime] form: Form,
) -> Pair {
    let mut logs = Array::<f32>::new(2usize);
    let mut resets = Array::<f32>::new(2usize);
    let mut betas = Array::<f32>::new(2usize);
    #[unroll]
    for n in 0..2usize {
        let step = step + comptime!(n as u32) * apart;
        logs[n] = 0.0f32;
        resets[n] = 0.0f32;
        betas[n] = 0.0f32;
        if comptime!(form.gate) {
            logs[n] = scalar(own, 0usize, step);
        }
        if comptime!(form.reset && later) {
            resets[n] = scalar(own, 4usize, step);
        }
        if comptime!(erased && later) {
            betas[n] = scalar(own, 2usize, step);
        }
    }
    Pair {
        logs,
        resets,
        betas,
    }
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
    let row = own.step + UNIT_POS_X / 4;
    let of_rows = pair_of(own, row, 8u32, later, erased, form);
    let mut all = Array::<Sums>::new(comptime!(CHUNK / 8));
    #[unroll]
    for n in 0..comptime!(CHUNK / 8) {
        let column = comptime!(8 * n as u32) + UNIT_POS_X % 4 * 2;
        let of_columns = pair_of(own, column, 1u32, !later, erased, form);
        let mut numbers = sums[n];
        #[unroll]
        for part in 0..4usize {
            let (i, j) = comptime!((part / 2, part % 2));
            let (row, column) = (row + comptime!(8 * i as u32), column + comptime!(j as u32));
            let (to, from) = if comptime!(later) {
                (row, column)
            } else {
                (column, row)
            };
            let mut factor = 1.0f32.runtime();
            if comptime!(form.gate) {
                let exponent = of_rows.logs[i] - of_columns.logs[j];
                factor = exp2_ptx(if comptime!(later) {
                    exponent
                } else {
                    0.0f32 - exponent
                });
            }
            let since = if comptime!(later) {
                of_rows.resets[i]
            } else {
                of_columns.resets[j]
            };
            let beta = if comptime!(later) {
                of_rows.betas[i]
            } else {
                of_columns.betas[j]
            };
            if comptime!(form.reset) {
                factor = select(f32::cast_from(from) >= since, factor, 0.0f32);
            }
            if comptime!(strict) {
                factor = 0.0f32 - factor;
            }
            if comptime!(erased) {
                factor *= beta;
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
    let layout = comptime!(form.of_channels());
    let row = own.step + UNIT_POS_X / 4;
    let at = tile + UNIT_POS_X % 4 * 4;
    let (mut upper, mut lower) = (0.0f32.runtime(), 0.0f32.runtime());
    #[unroll]
    for n in 0..comptime!(layout.len / 8) {
        let numbers = sums[n];
        let first = halves(word_at(at + place_in(row, n, layout)), form.storage);
        let second = halves(word_at(at + place_in(row + 8, n, layout)), form.storage);
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
    x: &mut [Words],
    rows: &Rows,
    own: &Own,
    #[comptime] form: Form,
) {
    let len = comptime!(form.of_channels().len);
    let mut words = Array::<Words>::new(comptime!(len / 16));
    #[unroll]
    for n in 0..comptime!(len / 16) {
        let (left, right) = comptime!((2 * n, 2 * n + 1));
        words[n] = operand(sums[left], sums[right], form.storage);
    }
    let step = own.step as usize;
    let own_rows = Rows {
        first: rows.first + step * rows.stride + own.channel,
        stride: rows.stride,
        there: rows.there.max(step) - step,
    };
    write_operands(&words, x, &own_rows, own.memory, len, false, form);
}
