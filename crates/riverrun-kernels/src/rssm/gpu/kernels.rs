//! The kernels: a thread for each number of the states, or for each categorical.

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use crate::gpu::math::{exp_of_negative_number, sigmoid_number, tanh_number};

/// The place of number `k` of the states in blocks of `columns` numbers a state.
#[cube]
fn in_blocks(
    k: usize,
    batch: usize,
    blocks: usize,
    width: usize,
    #[comptime] times: usize,
) -> usize {
    let state = k / (blocks * width);
    let number = k % (blocks * width);
    ((number / width) * batch + state) * times * width + number % width
}

/// Cubes: at least a thread for each number of the states. The same for all kernels but the draws.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn activate<F: Float>(
    x: &[F],
    y: &mut [F],
    batch: usize,
    blocks: usize,
    width: usize,
    #[comptime] ptx: bool,
    #[define(F)] _dtype: ElemType,
) {
    let k = ABSOLUTE_POS;
    if k < batch * blocks * width {
        let v = f32::cast_from(x[k]);
        y[in_blocks(k, batch, blocks, width, 1usize)] = F::cast_from(v * sigmoid_number(v, ptx));
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn activate_backward<F: Float>(
    x: &[F],
    d_y: &[F],
    d_x: &mut [F],
    batch: usize,
    blocks: usize,
    width: usize,
    #[comptime] ptx: bool,
    #[define(F)] _dtype: ElemType,
) {
    let k = ABSOLUTE_POS;
    if k < batch * blocks * width {
        let v = f32::cast_from(x[k]);
        let s = sigmoid_number(v, ptx);
        let rest = sigmoid_number(0.0f32 - v, ptx);
        let d = f32::cast_from(d_y[in_blocks(k, batch, blocks, width, 1usize)]);
        d_x[k] = F::cast_from(d * (s + v * s * rest));
    }
}

/// Number `c` of block `g` of state `b` of the gates is at `b * state + g * block + c`, without its bias, `[G, 3W]`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn step<F: Float>(
    gates: &[F],
    bias: &[F],
    before: &[F],
    next: &mut [F],
    batch: usize,
    blocks: usize,
    width: usize,
    state: usize,
    block: usize,
    #[comptime] biased: bool,
    #[comptime] ptx: bool,
    #[define(F)] _dtype: ElemType,
) {
    let k = ABSOLUTE_POS;
    if k < batch * blocks * width {
        let number = k % (blocks * width);
        let (own, column) = (number / width, number % width);
        let at = k / (blocks * width) * state + own * block + column;
        let mut r = f32::cast_from(gates[at]);
        let mut c = f32::cast_from(gates[at + width]);
        let mut u = f32::cast_from(gates[at + 2 * width]) - 1.0f32;
        if comptime!(biased) {
            let first = own * 3 * width + column;
            r += f32::cast_from(bias[first]);
            c += f32::cast_from(bias[first + width]);
            u += f32::cast_from(bias[first + 2 * width]);
        }
        let d = f32::cast_from(before[k]);
        let keep = sigmoid_number(0.0f32 - u, ptx);
        let new = sigmoid_number(u, ptx) * tanh_number(sigmoid_number(r, ptx) * c, ptx) + keep * d;
        next[k] = F::cast_from(new);
    }
}

/// The sum of one number for each thread of a cube.
#[cube]
fn sum_over_cube(own: f32, #[comptime] units: usize) -> f32 {
    let mut shared = Shared::<[f32]>::new_slice(units);
    let at = UNIT_POS as usize;
    shared[at] = own;
    sync_cube();
    #[unroll]
    for k in 0..comptime!(units.ilog2()) {
        let half = comptime!(units >> (k + 1));
        if at < half {
            shared[at] += shared[at + half];
        }
        sync_cube();
    }
    shared[0]
}

/// A number of a row: of its part, or of its sum.
#[cube]
fn part_of<F: Float>(
    first: &[F],
    second: &[F],
    third: &[F],
    part: usize,
    at: usize,
    #[comptime] form: Normed,
) -> f32 {
    if comptime!(form == Normed::Three) {
        if part == 0 {
            f32::cast_from(first[at])
        } else if part == 1 {
            f32::cast_from(second[at])
        } else {
            f32::cast_from(third[at])
        }
    } else if comptime!(form == Normed::Sum) {
        f32::cast_from(first[at]) + f32::cast_from(second[at])
    } else {
        f32::cast_from(first[at])
    }
}

/// The rows that [`norm_silu`] reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Normed {
    /// The first tensor.
    One,
    /// The sum of the first two.
    Sum,
    /// The first two beside each other, each with a norm of its own, and the third, which is copied.
    Three,
}

/// `silu(RMSNorm(x))`, a cube for each row, or each part of one.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn norm_silu<F: Float>(
    first: &[F],
    second: &[F],
    third: &[F],
    gamma: &[F],
    other_gamma: &[F],
    y: &mut [F],
    rows: usize,
    width: usize,
    epsilon: f32,
    other_epsilon: f32,
    #[comptime] form: Normed,
    #[comptime] units: usize,
    #[comptime] ptx: bool,
    #[define(F)] _dtype: ElemType,
) {
    let parts = comptime!(if form == Normed::Three {
        3usize
    } else {
        1usize
    });
    let part = CUBE_POS % parts;
    let there = CUBE_POS / parts < rows;
    let row = (CUBE_POS / parts).min(rows - 1);
    let each = width.div_ceil(units);
    let mut squares = 0.0f32;
    for k in 0..each {
        let column = k * units + UNIT_POS as usize;
        if column < width {
            let v = part_of::<F>(first, second, third, part, row * width + column, form);
            squares = fma(v, v, squares);
        }
    }
    let mean = sum_over_cube(squares, units) / f32::cast_from(width);
    let scale = (mean + select(part == 0, epsilon, other_epsilon)).inverse_sqrt();
    for k in 0..each {
        let column = k * units + UNIT_POS as usize;
        if there && column < width {
            let v = part_of::<F>(first, second, third, part, row * width + column, form);
            let mut out = v;
            if part < 2 {
                let mut weight = f32::cast_from(gamma[column]);
                if comptime!(form == Normed::Three) {
                    weight = select(part == 0, weight, f32::cast_from(other_gamma[column]));
                }
                let n = v * scale * weight;
                out = n * sigmoid_number(n, ptx);
            }
            y[(row * parts + part) * width + column] = F::cast_from(out);
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn step_backward<F: Float>(
    gates: &[F],
    before: &[F],
    d_next: &[F],
    d_gates: &mut [F],
    d_before: &mut [F],
    batch: usize,
    blocks: usize,
    width: usize,
    #[comptime] ptx: bool,
    #[define(F)] _dtype: ElemType,
) {
    let k = ABSOLUTE_POS;
    if k < batch * blocks * width {
        let at = in_blocks(k, batch, blocks, width, 3usize);
        let r = f32::cast_from(gates[at]);
        let c = f32::cast_from(gates[at + width]);
        let u = f32::cast_from(gates[at + 2 * width]) - 1.0f32;
        let (s, open) = (sigmoid_number(r, ptx), sigmoid_number(0.0f32 - r, ptx));
        let (update, keep) = (sigmoid_number(u, ptx), sigmoid_number(0.0f32 - u, ptx));
        let t = tanh_number(s * c, ptx);
        let e = f32::cast_from(d_next[k]);
        let inner = e * update * (1.0f32 - t * t);
        d_gates[at] = F::cast_from(inner * c * s * open);
        d_gates[at + width] = F::cast_from(inner * s);
        d_gates[at + 2 * width] = F::cast_from(e * (t - f32::cast_from(before[k])) * update * keep);
        d_before[k] = F::cast_from(e * keep);
    }
}

/// The largest logit of a row, and the sum of `exp(l - largest)`.
#[cube]
fn total<F: Float>(
    logits: &[F],
    first: usize,
    classes: usize,
    #[comptime] ptx: bool,
) -> (f32, f32) {
    let mut most = f32::cast_from(logits[first]);
    for class in 1..classes {
        let l = f32::cast_from(logits[first + class]);
        most = select(l > most, l, most);
    }
    let mut sum = 0.0f32;
    for class in 0..classes {
        sum += exp_of_negative_number(most - f32::cast_from(logits[first + class]), ptx);
    }
    (most, sum)
}

/// Cubes: at least a thread for each categorical. `first` is the place of their noise.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn draw<F: Float>(
    logits: &[F],
    noise: &[f32],
    sample: &mut [F],
    rows: usize,
    classes: usize,
    first: usize,
    unimix: f32,
    #[comptime] ptx: bool,
    #[define(F)] _dtype: ElemType,
) {
    let row = ABSOLUTE_POS;
    if row < rows {
        let at = row * classes;
        let (most, sum) = total::<F>(logits, at, classes, ptx);
        let uniform = unimix / f32::cast_from(classes);
        let mut best = 0usize;
        let mut highest = 0.0f32;
        for class in 0..classes {
            let q = exp_of_negative_number(most - f32::cast_from(logits[at + class]), ptx) / sum;
            let p = (1.0f32 - unimix) * q + uniform;
            let score = p.ln() + noise[first + at + class];
            if class == 0 || score > highest {
                best = class;
                highest = score;
            }
        }
        // Where a logit is NaN, so is the sum, and no comparison holds.
        let nothing = select(sum > 0.0f32, 0.0f32, sum);
        for class in 0..classes {
            let hot = select(class == best, 1.0f32, 0.0f32);
            sample[at + class] = F::cast_from(hot + nothing);
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn draw_backward<F: Float>(
    logits: &[F],
    d_sample: &[F],
    d_logits: &mut [F],
    rows: usize,
    classes: usize,
    unimix: f32,
    #[comptime] ptx: bool,
    #[define(F)] _dtype: ElemType,
) {
    let row = ABSOLUTE_POS;
    if row < rows {
        let at = row * classes;
        let (most, sum) = total::<F>(logits, at, classes, ptx);
        let mut mean = 0.0f32;
        for class in 0..classes {
            let weight = exp_of_negative_number(most - f32::cast_from(logits[at + class]), ptx);
            mean += weight / sum * f32::cast_from(d_sample[at + class]);
        }
        for class in 0..classes {
            let weight = exp_of_negative_number(most - f32::cast_from(logits[at + class]), ptx);
            let d = f32::cast_from(d_sample[at + class]) - mean;
            d_logits[at + class] = F::cast_from((1.0f32 - unimix) * (weight / sum) * d);
        }
    }
}
