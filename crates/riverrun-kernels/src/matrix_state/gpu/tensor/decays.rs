//! Decays of rows of a state over the steps of a chunk.
//!
//! Let `j < i` be steps of a chunk. The smallest aligned block of 2, 4, .. or 64 steps with both of them has `j` in its first half and
//! `i` in its second. The decay between the two is the decay over the first half's steps after `j`, times the decay over the second
//! half's steps up to and including `i`. So for each size of block a step has one factor, and a matrix product multiplies all pairs, of
//! which the entries of such pairs are kept. Factors are products of decays, at most 1, without a difference of logarithms.

use std::f32::consts::LOG2_E;

use cubecl::prelude::*;

use super::tile::*;
use crate::gpu::full_plane::shuffle_xor;
use crate::gpu::math::exp2_ptx;

/// Decays within blocks of steps, for some channels.
#[derive(CubeType)]
pub(super) struct Decays {
    /// Over the steps from the start of the block up to and including the step.
    pub from_start: Array<Sums>,
    /// Over the steps of the block after the step.
    pub to_end: Array<Sums>,
    /// Over the whole block.
    pub whole: Array<Sums>,
    /// Over the steps from the start of the block that come before the step, where something reads before its step's decay.
    pub before: Array<Sums>,
}

#[cube]
impl Decays {
    /// Room for `count` groups of channels and steps.
    pub fn new(#[comptime] count: usize, #[comptime] before: bool) -> Self {
        Decays {
            from_start: Array::new(count),
            to_end: Array::new(count),
            whole: Array::new(count),
            before: Array::new(comptime!(if before { count } else { 1 })),
        }
    }
}

/// The decays with these logarithms; NaN for a positive one.
#[cube]
pub(super) fn of_logs(logs: Sums) -> Sums {
    let nan = f32::reinterpret(0x7fc0_0000u32.runtime());
    let mut decays = Sums::new(0.0f32);
    #[unroll]
    for i in 0..4usize {
        let log = logs.extract(i);
        let log = select(log > 0.0f32, nan, log * LOG2_E);
        decays.insert(i, exp2_ptx(log));
    }
    decays
}

#[cube]
pub(super) fn chosen(first: bool, x: Sums, y: Sums) -> Sums {
    let mut sums = Sums::new(0.0f32);
    #[unroll]
    for i in 0..4usize {
        sums.insert(i, select(first, x.extract(i), y.extract(i)));
    }
    sums
}

/// Joins a block and that of the thread whose place differs by `mask`, the halves of one.
#[cube]
pub(super) fn join_threads(
    decays: &mut Decays,
    #[comptime] n: usize,
    #[comptime] mask: u32,
    #[comptime] before: bool,
) {
    let second = UNIT_POS_X & mask != 0;
    let one = Sums::new(1.0f32);
    let whole = decays.whole[n];
    let mut other = Sums::new(0.0f32);
    #[unroll]
    for i in 0..4usize {
        other.insert(i, shuffle_xor(whole.extract(i), mask));
    }
    let earlier = chosen(second, other, one);
    decays.from_start[n] *= earlier;
    if comptime!(before) {
        decays.before[n] *= earlier;
    }
    decays.to_end[n] *= chosen(second, one, other);
    decays.whole[n] = whole * other;
}

/// Joins two blocks of `count` places each, the halves of one.
#[cube]
pub(super) fn join(
    decays: &mut Decays,
    #[comptime] first: usize,
    #[comptime] second: usize,
    #[comptime] count: usize,
    #[comptime] before: bool,
) {
    let (x, y) = (decays.whole[first], decays.whole[second]);
    #[unroll]
    for n in 0..count {
        decays.to_end[first + n] *= y;
        decays.from_start[second + n] *= x;
        if comptime!(before) {
            decays.before[second + n] *= x;
        }
        decays.whole[first + n] = x * y;
        decays.whole[second + n] = x * y;
    }
}
