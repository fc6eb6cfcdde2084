//! The kernels: a thread for each number of the states, or for each categorical.

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use crate::gpu::group::{Fold, Group, fold};
use crate::gpu::math::{exp_of_negative_number, sigmoid_number, tanh_number};
use crate::gpu::storage::{Storage, narrow, widen};

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

/// Vector `c` of block `g` of state `b` of the gates is at `b * state + g * block + c`, without its bias, `[G, 3W]`. Sizes count
/// vectors.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn step<S: Numeric, W: Size, N: Size>(
    gates: &[Vector<S, W>],
    bias: &[Vector<S, W>],
    before: &[Vector<S, W>],
    next: &mut [Vector<S, W>],
    batch: usize,
    blocks: usize,
    width: usize,
    state: usize,
    block: usize,
    #[comptime] biased: bool,
    #[comptime] storage: Storage,
    #[comptime] ptx: bool,
    #[define(S)] _elem: ElemType,
) {
    let k = ABSOLUTE_POS;
    if k < batch * blocks * width {
        let number = k % (blocks * width);
        let (own, column) = (number / width, number % width);
        let at = k / (blocks * width) * state + own * block + column;
        let mut r = widen::<S, W, N>(gates[at], storage);
        let mut c = widen::<S, W, N>(gates[at + width], storage);
        let mut u = widen::<S, W, N>(gates[at + 2 * width], storage);
        if comptime!(biased) {
            let first = own * 3 * width + column;
            r += widen::<S, W, N>(bias[first], storage);
            c += widen::<S, W, N>(bias[first + width], storage);
            u += widen::<S, W, N>(bias[first + 2 * width], storage);
        }
        let d = widen::<S, W, N>(before[k], storage);
        let mut new = Vector::<f32, N>::new(0.0f32);
        #[unroll]
        for i in 0..N::value() {
            let update = u.extract(i) - 1.0f32;
            let keep = sigmoid_number(0.0f32 - update, ptx);
            let inner = sigmoid_number(r.extract(i), ptx) * c.extract(i);
            let moved = sigmoid_number(update, ptx) * tanh_number(inner, ptx);
            new.insert(i, moved + keep * d.extract(i));
        }
        next[k] = narrow::<S, W, N>(new, storage);
    }
}

/// A vector of a row: of its part, or of its sum.
#[cube]
fn part_of<S: Numeric, W: Size, N: Size>(
    first: &[Vector<S, W>],
    second: &[Vector<S, W>],
    third: &[Vector<S, W>],
    part: usize,
    at: usize,
    #[comptime] config: Normed,
) -> Vector<f32, N> {
    let storage = comptime!(config.storage);
    if comptime!(config.form == Form::Three) {
        let mut own = third[at];
        if part == 0 {
            own = first[at];
        } else if part == 1 {
            own = second[at];
        }
        widen::<S, W, N>(own, storage)
    } else if comptime!(config.form == Form::Sum) {
        widen::<S, W, N>(first[at], storage) + widen::<S, W, N>(second[at], storage)
    } else {
        widen::<S, W, N>(first[at], storage)
    }
}

/// The rows that [`norm_silu`] reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Form {
    /// The first tensor.
    One,
    /// The sum of the first two.
    Sum,
    /// The first two beside each other, each with a norm of its own, and the third, which is copied.
    Three,
}

impl Form {
    /// Parts of a row.
    pub fn parts(self) -> usize {
        if self == Form::Three { 3 } else { 1 }
    }
}

/// The values that change the code of [`norm_silu`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Normed {
    pub form: Form,
    /// Vectors of a part that a thread holds.
    pub each: usize,
    pub group: Group,
    pub storage: Storage,
    pub ptx: bool,
}

/// `silu(RMSNorm(x))`, a group of threads for each row, or each part of one. `width` counts vectors.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn norm_silu<S: Numeric, W: Size, N: Size>(
    first: &[Vector<S, W>],
    second: &[Vector<S, W>],
    third: &[Vector<S, W>],
    gamma: &[Vector<S, W>],
    other_gamma: &[Vector<S, W>],
    y: &mut [Vector<S, W>],
    rows: usize,
    width: usize,
    epsilon: f32,
    other_epsilon: f32,
    #[comptime] config: Normed,
    #[define(S)] _elem: ElemType,
) {
    let parts = comptime!(config.form.parts());
    let each = comptime!(config.each);
    let units = comptime!(config.group.units);
    let storage = comptime!(config.storage);
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(config.group.scratch(1)));
    let place = CUBE_POS * comptime!(config.group.rows) + UNIT_POS_Y as usize;
    let part = place % parts;
    let there = place / parts < rows;
    // A group without a row repeats the last one and writes nothing.
    let row = (place / parts).min(rows - 1);
    let mut held = Array::<Vector<f32, N>>::new(each);
    let mut squares = Vector::<f32, N>::new(0.0f32);
    #[unroll]
    for k in 0..each {
        let column = k * units + UNIT_POS_X as usize;
        let at = row * width + column.min(width - 1);
        held[k] = part_of::<S, W, N>(first, second, third, part, at, config);
        let inside = select(column < width, 1.0f32, 0.0f32);
        let own = held[k] * Vector::<f32, N>::new(inside);
        squares = fma(held[k], own, squares);
    }
    let mut sums = Array::<f32>::new(1usize);
    sums[0] = squares.extract(0usize);
    #[unroll]
    for i in 1..N::value() {
        sums[0] += squares.extract(i);
    }
    fold(
        &mut sums,
        &mut scratch,
        0usize,
        1usize,
        Fold::Sum,
        config.group,
    );
    let mean = sums[0] / f32::cast_from(width * N::value());
    let scale = (mean + select(part == 0, epsilon, other_epsilon)).inverse_sqrt();
    #[unroll]
    for k in 0..each {
        let column = k * units + UNIT_POS_X as usize;
        if there && column < width {
            let mut out = held[k];
            if part < 2 {
                let mut weight = gamma[column];
                if comptime!(config.form == Form::Three) {
                    if part == 1 {
                        weight = other_gamma[column];
                    }
                }
                let n = held[k] * Vector::<f32, N>::new(scale) * widen::<S, W, N>(weight, storage);
                #[unroll]
                for i in 0..N::value() {
                    let n = n.extract(i);
                    out.insert(i, n * sigmoid_number(n, config.ptx));
                }
            }
            y[(row * parts + part) * width + column] = narrow::<S, W, N>(out, storage);
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
fn total<S: Numeric, W: Size, N: Size>(
    logits: &[Vector<S, W>],
    first: usize,
    cols: usize,
    #[comptime] storage: Storage,
    #[comptime] ptx: bool,
) -> (f32, f32) {
    let mut most = widen::<S, W, N>(logits[first], storage).extract(0usize);
    for col in 0..cols {
        let l = widen::<S, W, N>(logits[first + col], storage);
        #[unroll]
        for i in 0..N::value() {
            most = select(l.extract(i) > most, l.extract(i), most);
        }
    }
    let mut sum = 0.0f32;
    for col in 0..cols {
        let l = widen::<S, W, N>(logits[first + col], storage);
        #[unroll]
        for i in 0..N::value() {
            sum += exp_of_negative_number(most - l.extract(i), ptx);
        }
    }
    (most, sum)
}

/// Cubes: at least a thread for each categorical. `cols` vectors are its classes, and `first` the vector where the noise begins.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn draw<S: Numeric, W: Size, N: Size>(
    logits: &[Vector<S, W>],
    noise: &[Vector<f32, N>],
    sample: &mut [Vector<S, W>],
    rows: usize,
    cols: usize,
    first: usize,
    unimix: f32,
    #[comptime] storage: Storage,
    #[comptime] ptx: bool,
    #[define(S)] _elem: ElemType,
) {
    let row = ABSOLUTE_POS;
    if row < rows {
        let at = row * cols;
        let (most, sum) = total::<S, W, N>(logits, at, cols, storage, ptx);
        let uniform = unimix / f32::cast_from(cols * N::value());
        let mut best = 0usize;
        let mut highest = 0.0f32;
        for col in 0..cols {
            let l = widen::<S, W, N>(logits[at + col], storage);
            let noise = noise[first + at + col];
            #[unroll]
            for i in 0..N::value() {
                let class = col * N::value() + i;
                let q = exp_of_negative_number(most - l.extract(i), ptx) / sum;
                let p = (1.0f32 - unimix) * q + uniform;
                let score = p.ln() + noise.extract(i);
                if class == 0 || score > highest {
                    best = class;
                    highest = score;
                }
            }
        }
        // Where a logit is NaN, so is the sum, and no comparison holds.
        let nothing = select(sum > 0.0f32, 0.0f32, sum);
        for col in 0..cols {
            let mut hot = Vector::<f32, N>::new(nothing);
            #[unroll]
            for i in 0..N::value() {
                let is = select(col * N::value() + i == best, 1.0f32, 0.0f32);
                hot.insert(i, is + nothing);
            }
            sample[at + col] = narrow::<S, W, N>(hot, storage);
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn draw_backward<S: Numeric, W: Size, N: Size>(
    logits: &[Vector<S, W>],
    d_sample: &[Vector<S, W>],
    d_logits: &mut [Vector<S, W>],
    rows: usize,
    cols: usize,
    unimix: f32,
    #[comptime] storage: Storage,
    #[comptime] ptx: bool,
    #[define(S)] _elem: ElemType,
) {
    let row = ABSOLUTE_POS;
    if row < rows {
        let at = row * cols;
        let (most, sum) = total::<S, W, N>(logits, at, cols, storage, ptx);
        let mut mean = 0.0f32;
        for col in 0..cols {
            let l = widen::<S, W, N>(logits[at + col], storage);
            let d = widen::<S, W, N>(d_sample[at + col], storage);
            #[unroll]
            for i in 0..N::value() {
                let weight = exp_of_negative_number(most - l.extract(i), ptx);
                mean += weight / sum * d.extract(i);
            }
        }
        for col in 0..cols {
            let l = widen::<S, W, N>(logits[at + col], storage);
            let mut d = widen::<S, W, N>(d_sample[at + col], storage);
            #[unroll]
            for i in 0..N::value() {
                let weight = exp_of_negative_number(most - l.extract(i), ptx);
                let centred = d.extract(i) - mean;
                d.insert(i, (1.0f32 - unimix) * (weight / sum) * centred);
            }
            d_logits[at + col] = narrow::<S, W, N>(d, storage);
        }
    }
}
