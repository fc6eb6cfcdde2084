//! The kernels.

use cubecl::prelude::*;

use crate::gpu::group::{Fold, Group, fold};
use crate::gpu::math::{exp_of_negative, exp_of_negative_number};
use crate::gpu::storage::{Storage, narrow, widen};

/// Lower than any logit that could count; finite, so that its differences are finite.
const LOWEST: f32 = f32::MIN;

/// The values that change the generated code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Config {
    pub storage: Storage,
    /// Vectors a thread loads ahead.
    pub ahead: usize,
    pub ptx: bool,
    /// Targets have 64 bits.
    pub wide: bool,
    /// Rows are short, so that nearly every plane has a vector across two of them, but no vector is across three: then all
    /// planes take that path.
    pub two: bool,
    pub group: Group,
}

/// A target as 32 bits: -1 for every negative one, `vocab` for every one above the classes.
#[cube]
fn class<I: Int>(target: I, vocab: usize, #[comptime] wide: bool) -> i32 {
    if comptime!(wide) {
        let most = I::cast_from(vocab);
        let least = I::from_int(-1);
        let target = select(target < most, target, most);
        i32::cast_from(select(target < least, least, target))
    } else {
        i32::cast_from(target)
    }
}

/// A maximum, and the sum of the exponentials relative to it.
#[derive(CubeType, Clone, Copy)]
struct Partial {
    max: f32,
    sum: f32,
}

/// `Σ e^(x - max)` over some vectors, with the earlier sum rescaled to the new maximum.
#[cube]
fn add<N: Size>(
    before: &Partial,
    x: &Array<Vector<f32, N>>,
    #[comptime] count: usize,
    #[comptime] ptx: bool,
) -> Partial {
    let mut highest = x[0];
    #[unroll]
    for k in 1..count {
        highest = max(highest, x[k]);
    }
    let mut top = before.max;
    #[unroll]
    for i in 0..N::value() {
        top = top.max(highest.extract(i));
    }
    let all = Vector::<f32, N>::new(top);
    let mut sums = Vector::<f32, N>::new(0.0f32);
    #[unroll]
    for k in 0..count {
        sums += exp_of_negative::<N>(all - x[k], ptx);
    }
    let mut sum = before.sum * exp_of_negative_number(top - before.max, ptx);
    #[unroll]
    for i in 0..N::value() {
        sum += sums.extract(i);
    }
    Partial { max: top, sum }
}

/// Writes `lse` and the loss of each row; 0 where the row does not count. `[rows]` each.
///
/// Groups: one a row.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn cross_entropy_forward<S: Numeric, I: Int, W: Size, N: Size>(
    x: &[Vector<S, W>],
    targets: &[I],
    lse: &mut [f32],
    losses: &mut [f32],
    rows: usize,
    vocab: usize,
    #[comptime] config: Config,
    #[define(S)] _dtype: ElemType,
    #[define(I)] _index: ElemType,
) {
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(config.group.scratch(1)));
    let units = comptime!(config.group.units);
    let ahead = comptime!(config.ahead);
    let unit = UNIT_POS_X as usize;
    let own = CUBE_POS * comptime!(config.group.rows) + UNIT_POS_Y as usize;
    // A group without a row repeats the last one and writes nothing.
    let row = own.min(rows - 1);
    let start = row * vocab;
    let end = start + vocab;
    // Vectors inside the row.
    let first = start.div_ceil(N::value());
    let last = (end / N::value()).max(first);
    let count = last - first;

    let mut top = f32::cast_from(LOWEST);
    let mut sum = 0.0f32;
    let stride = units * ahead;
    let rounds = count / stride;
    for round in 0..rounds {
        let mut raw = Array::<Vector<S, W>>::new(ahead);
        #[unroll]
        for k in 0..ahead {
            raw[k] = x[first + round * stride + k * units + unit];
        }
        let mut wide = Array::<Vector<f32, N>>::new(ahead);
        #[unroll]
        for k in 0..ahead {
            wide[k] = widen::<S, W, N>(raw[k], config.storage);
        }
        let next = add::<N>(&Partial { max: top, sum }, &wide, ahead, config.ptx);
        top = next.max;
        sum = next.sum;
    }
    let mut at = first + rounds * stride + unit;
    while at < last {
        let mut wide = Array::<Vector<f32, N>>::new(1usize);
        wide[0] = widen::<S, W, N>(x[at], config.storage);
        let next = add::<N>(&Partial { max: top, sum }, &wide, 1usize, config.ptx);
        top = next.max;
        sum = next.sum;
        at += units;
    }
    // The two vectors at the ends, if they are shared with other rows: by the first thread and the last.
    let head = start / N::value();
    let tail = end / N::value();
    let has_head = head < first;
    let has_tail = tail * N::value() < end && (tail > head || !has_head);
    #[unroll]
    for side in 0..comptime!(if units == 1 { 2usize } else { 1usize }) {
        let mut at = head;
        let mut shared = has_head && unit == 0;
        if comptime!(side == 1) {
            at = tail;
            shared = has_tail;
        } else if comptime!(units > 1) {
            let closing = unit == comptime!(units - 1);
            at = select(closing, tail, head);
            shared = shared || (closing && has_tail);
        }
        if shared {
            let wide = widen::<S, W, N>(x[at], config.storage);
            let mut own = Vector::<f32, N>::new(f32::cast_from(LOWEST));
            let mut higher = top;
            #[unroll]
            for i in 0..N::value() {
                let element = at * N::value() + i;
                if element >= start && element < end {
                    own.insert(i, wide.extract(i));
                    higher = higher.max(wide.extract(i));
                }
            }
            let exponentials =
                exp_of_negative::<N>(Vector::<f32, N>::new(higher) - own, config.ptx);
            let mut more = 0.0f32;
            #[unroll]
            for i in 0..N::value() {
                let element = at * N::value() + i;
                let counts = element >= start && element < end;
                more += select(counts, exponentials.extract(i), 0.0f32);
            }
            sum = sum * exp_of_negative_number(higher - top, config.ptx) + more;
            top = higher;
        }
    }
    let mut values = Array::<f32>::new(1usize);
    values[0] = top;
    fold(
        &mut values,
        &mut scratch,
        0usize,
        1usize,
        Fold::Max,
        config.group,
    );
    let highest = values[0];
    values[0] = sum * exp_of_negative_number(highest - top, config.ptx);
    fold(
        &mut values,
        &mut scratch,
        1usize,
        1usize,
        Fold::Sum,
        config.group,
    );
    if unit == 0 && own < rows {
        let value = highest + values[0].ln();
        lse[row] = value;
        let target = class::<I>(targets[row], vocab, config.wide);
        let mut loss = 0.0f32;
        if target >= 0 {
            // A NaN, computed from run-time values, because shading languages have no NaN constant.
            loss = f32::reinterpret(u32::cast_from(target) | 0x7fc0_0000u32);
            if (target as usize) < vocab {
                let element = start + target as usize;
                let wide = widen::<S, W, N>(x[element / N::value()], config.storage);
                #[unroll]
                for i in 0..N::value() {
                    if element % N::value() == i {
                        loss = value - wide.extract(i);
                    }
                }
            }
        }
        losses[row] = loss;
    }
}

/// Writes the sum of the losses of the rows that count, and their number, of each cube's rows: `[cubes, 2]`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn cross_entropy_sum<I: Int>(
    losses: &[f32],
    targets: &[I],
    parts: &mut [f32],
    rows: usize,
    #[comptime] group: Group,
    #[define(I)] _index: ElemType,
) {
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(group.scratch(2)));
    let mut sum = 0.0f32;
    let mut count = 0.0f32;
    let units = comptime!(group.units);
    let mut row = CUBE_POS * units + UNIT_POS_X as usize;
    while row < rows {
        if targets[row] >= I::from_int(0) {
            sum += losses[row];
            count += 1.0f32;
        }
        row += CUBE_COUNT * units;
    }
    let mut values = Array::<f32>::new(2usize);
    values[0] = sum;
    values[1] = count;
    fold(&mut values, &mut scratch, 0usize, 2usize, Fold::Sum, group);
    if UNIT_POS_X == 0 {
        parts[CUBE_POS * 2] = values[0];
        parts[CUBE_POS * 2 + 1] = values[1];
    }
}

/// Writes the mean loss and 1 over the number of rows that count, from the parts. One cube.
#[cube(launch_unchecked)]
pub(super) fn cross_entropy_mean(
    parts: &[f32],
    loss: &mut [f32],
    weight: &mut [f32],
    cubes: usize,
    #[comptime] group: Group,
) {
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(group.scratch(2)));
    let mut values = Array::<f32>::new(2usize);
    values[0] = 0.0f32;
    values[1] = 0.0f32;
    let mut part = UNIT_POS_X as usize;
    while part < cubes {
        values[0] += parts[part * 2];
        values[1] += parts[part * 2 + 1];
        part += comptime!(group.units);
    }
    fold(&mut values, &mut scratch, 0usize, 2usize, Fold::Sum, group);
    if UNIT_POS_X == 0 {
        loss[0] = values[0] / values[1];
        weight[0] = 1.0f32 / values[1];
    }
}

/// Writes `d_x`. Threads: vectors, `ahead` of them each, a cube's neighbouring.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn cross_entropy_backward<S: Numeric, I: Int, W: Size, N: Size>(
    x: &[Vector<S, W>],
    targets: &[I],
    lse: &[f32],
    weight: &[f32],
    d_loss: &[f32],
    d_x: &mut [Vector<S, W>],
    rows: usize,
    vocab: usize,
    #[comptime] config: Config,
    #[define(S)] _dtype: ElemType,
    #[define(I)] _index: ElemType,
) {
    let ahead = comptime!(config.ahead);
    let units = comptime!(config.group.units);
    let scale = d_loss[0] * weight[0];
    let start = CUBE_POS * units * ahead + UNIT_POS_X as usize;
    let mut raw = Array::<Vector<S, W>>::new(ahead);
    #[unroll]
    for k in 0..ahead {
        raw[k] = x[(start + k * units).min(x.len() - 1)];
    }
    #[unroll]
    for k in 0..ahead {
        let at = start + k * units;
        if at < x.len() {
            let first = at * N::value();
            let row = first / vocab;
            let place = first - row * vocab;
            let wide = widen::<S, W, N>(raw[k], config.storage);
            let mut out = Vector::<f32, N>::new(0.0f32);
            if comptime!(config.two) {
                // At most the end of a row and the beginning of the next.
                let next = (row + 1).min(rows - 1);
                let end = vocab - place;
                let target = class::<I>(targets[row], vocab, config.wide);
                let next_target = class::<I>(targets[next], vocab, config.wide);
                let (sum, next_sum) = (lse[row], lse[next]);
                let hit = target - i32::cast_from(place);
                let next_hit = next_target + i32::cast_from(end);
                let mut sums = Vector::<f32, N>::new(sum);
                #[unroll]
                for i in 1..N::value() {
                    sums.insert(i, select(i < end, sum, next_sum));
                }
                let p =
                    exp_of_negative::<N>(sums - wide, config.ptx) * Vector::<f32, N>::new(scale);
                #[unroll]
                for i in 0..N::value() {
                    let own = p.extract(i);
                    let first = i < end;
                    let hit = select(first, hit, next_hit) == comptime!(i as i32);
                    let out_of = select(first, target, next_target) < 0;
                    // Not by a factor of 0, which leaves NaN where a number is not finite.
                    let own = select(hit, own - scale, own);
                    out.insert(i, select(out_of, 0.0f32, own));
                }
            } else if place + N::value() <= vocab {
                let target = class::<I>(targets[row], vocab, config.wide);
                let below = Vector::<f32, N>::new(lse[row]) - wide;
                let p = exp_of_negative::<N>(below, config.ptx) * Vector::<f32, N>::new(scale);
                let hit = target - i32::cast_from(place);
                #[unroll]
                for i in 0..N::value() {
                    let own = p.extract(i);
                    let hit = hit == comptime!(i as i32);
                    let own = select(hit, own - scale, own);
                    out.insert(i, select(target < 0, 0.0f32, own));
                }
            } else {
                #[unroll]
                for i in 0..N::value() {
                    let row = ((first + i) / vocab).min(rows - 1);
                    let place = first + i - row * vocab;
                    let target = class::<I>(targets[row], vocab, config.wide);
                    let p = exp_of_negative_number(lse[row] - wide.extract(i), config.ptx);
                    let hit = select(target == i32::cast_from(place), 1.0f32, 0.0f32);
                    out.insert(i, select(target < 0, 0.0f32, (p - hit) * scale));
                }
            }
            d_x[at] = narrow::<S, W, N>(out, config.storage);
        }
    }
}
