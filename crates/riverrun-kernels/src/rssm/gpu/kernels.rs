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

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn step<F: Float>(
    gates: &[F],
    before: &[F],
    next: &mut [F],
    batch: usize,
    blocks: usize,
    width: usize,
    #[comptime] ptx: bool,
    #[define(F)] _dtype: ElemType,
) {
    let k = ABSOLUTE_POS;
    if k < batch * blocks * width {
        let at = in_blocks(k, batch, blocks, width, 3usize);
        let r = sigmoid_number(f32::cast_from(gates[at]), ptx);
        let c = f32::cast_from(gates[at + width]);
        let u = f32::cast_from(gates[at + 2 * width]) - 1.0f32;
        let d = f32::cast_from(before[k]);
        let keep = sigmoid_number(0.0f32 - u, ptx);
        let new = sigmoid_number(u, ptx) * tanh_number(r * c, ptx) + keep * d;
        next[k] = F::cast_from(new);
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
