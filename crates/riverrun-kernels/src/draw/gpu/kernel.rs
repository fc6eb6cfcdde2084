//! The kernels.

use cubecl::prelude::*;

use crate::gpu::group::{Fold, Group, fold};
use crate::gpu::math::exp_of_negative_number;
use crate::gpu::overlap::{late, launch_before};

/// The form of a problem, as the kernels know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Config {
    pub group: Group,
    /// The largest logit is taken.
    pub greedy: bool,
    /// Logits below the row's limit are left out.
    pub limited: bool,
    /// A row has one part.
    pub alone: bool,
    /// Bits of a key that tell two logits apart.
    pub bits: usize,
    /// The device runs PTX.
    pub ptx: bool,
    /// Launches overlap in recordings.
    pub overlaps: bool,
}

/// Sizes that are known at launch.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Sizes {
    pub rows: usize,
    pub symbols: usize,
    pub stride: usize,
    pub parts: usize,
    /// Symbols of a part.
    pub per_part: usize,
    pub slots: usize,
    /// 1 / temperature.
    pub scale: f32,
}

/// What is known of a part. Numbers of symbols are negative, so that the largest is the first.
#[derive(CubeType, Clone, Copy)]
struct Summary {
    /// The largest finite logit.
    largest: f32,
    /// The first symbol that has it.
    top: f32,
    /// The first symbol whose logit is not finite.
    bad: f32,
    /// The weights, relative to the largest logit.
    sum: f32,
}

/// Symbols that a thread reads at once.
const AT_ONCE: usize = 16;

/// Threads of a band.
const BAND: usize = 16;

const LEAST: u32 = 0xff80_0000;

/// Less than any number.
#[cube]
fn least() -> f32 {
    f32::reinterpret(LEAST)
}

#[cube]
fn is_finite(x: f32) -> bool {
    u32::reinterpret(x) & 0x7f80_0000u32 != 0x7f80_0000u32
}

/// A number that is ordered as the logit is.
#[cube]
fn key(logit: f32) -> u32 {
    let bits = u32::reinterpret(logit);
    select(bits >> 31u32 == 1u32, !bits, bits | 0x8000_0000u32)
}

/// The weight of a logit, if it is not below the limit.
#[cube]
fn weight(logit: f32, largest: f32, limit: u32, scale: f32, #[comptime] config: Config) -> f32 {
    let mut weight = exp_of_negative_number((largest - logit) * scale, config.ptx);
    if comptime!(config.limited) {
        weight = select(key(logit) >= limit, weight, 0.0f32);
    }
    weight
}

/// The largest number of the cube's threads.
#[cube]
fn largest_of(value: f32, scratch: &mut [f32], phase: usize, #[comptime] config: Config) -> f32 {
    let mut values = Array::<f32>::new(1usize);
    values[0] = value;
    fold(&mut values, scratch, phase, 1usize, Fold::Max, config.group);
    values[0]
}

/// The sum of the numbers of the cube's threads.
#[cube]
fn sum_of(value: f32, scratch: &mut [f32], phase: usize, #[comptime] config: Config) -> f32 {
    let mut values = Array::<f32>::new(1usize);
    values[0] = value;
    fold(&mut values, scratch, phase, 1usize, Fold::Sum, config.group);
    values[0]
}

/// Sums up a part of a row; with an even number of folds.
#[cube]
fn summary<F: Numeric>(
    logits: &[F],
    row: usize,
    part: usize,
    limit: u32,
    scratch: &mut [f32],
    sizes: &Sizes,
    #[comptime] config: Config,
) -> Summary {
    let units = comptime!(config.group.units);
    let unit = UNIT_POS_X as usize;
    let first = part * sizes.per_part;
    let end = (first + sizes.per_part).min(sizes.symbols);
    let mut largest = least();
    let mut top = least();
    let mut bad = least();
    let mut i = first + unit;
    while i < end {
        let logit = f32::cast_from(late::<F>(logits, row * sizes.stride + i, config.overlaps));
        let number = 0.0f32 - f32::cast_from(i);
        if is_finite(logit) {
            if logit > largest {
                largest = logit;
                top = number;
            }
        } else {
            bad = bad.max(number);
        }
        i += units;
    }
    let all = largest_of(largest, scratch, 0usize, config);
    let top = largest_of(
        select(largest == all, top, least()),
        scratch,
        1usize,
        config,
    );
    let bad = largest_of(bad, scratch, 0usize, config);
    let mut sum = 0.0f32;
    if comptime!(!config.greedy) {
        let mut i = first + unit;
        while i < end {
            let logit = f32::cast_from(late::<F>(logits, row * sizes.stride + i, config.overlaps));
            sum += weight(logit, all, limit, sizes.scale, config);
            i += units;
        }
    }
    let sum = sum_of(sum, scratch, 1usize, config);
    Summary {
        largest: all,
        top,
        bad,
        sum,
    }
}

/// The limit of a row: the key of its `kept`-th largest logit, which is the largest one that as many logits reach. A cube for each row.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn threshold<F: Numeric>(
    logits: &[F],
    limits: &mut [u32],
    kept: f32,
    sizes: Sizes,
    #[comptime] config: Config,
    #[define(F)] _element: ElemType,
) {
    if CUBE_POS >= sizes.rows {
        terminate!();
    }
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(config.group.scratch(1)));
    let units = comptime!(config.group.units);
    launch_before(config.overlaps, true);
    let row = CUBE_POS;
    let mut limit = 0u32.runtime();
    for n in 0..comptime!(config.bits) {
        let next = limit | 0x8000_0000u32 >> (n as u32);
        let mut count = 0.0f32;
        let mut first = UNIT_POS_X as usize;
        while first < sizes.symbols {
            // Several at once, so that their loads are on their way together.
            #[unroll]
            for n in 0..AT_ONCE {
                let i = first + n * units;
                let at = row * sizes.stride + i.min(sizes.symbols - 1);
                let logit = f32::cast_from(late::<F>(logits, at, config.overlaps));
                let counts = i < sizes.symbols && key(logit) >= next;
                count += select(counts, 1.0f32, 0.0f32);
            }
            first += comptime!(AT_ONCE * units);
        }
        let count = sum_of(count, &mut scratch, n % 2, config);
        limit = select(count >= kept, next, limit);
    }
    if UNIT_POS_X == 0 {
        limits[row] = limit;
    }
}

/// A cube for each part of each row.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn summarize<F: Numeric>(
    logits: &[F],
    limits: &[u32],
    summaries: &mut [f32],
    sizes: Sizes,
    #[comptime] config: Config,
    #[define(F)] _element: ElemType,
) {
    if CUBE_POS >= sizes.rows * sizes.parts {
        terminate!();
    }
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(config.group.scratch(1)));
    launch_before(config.overlaps, true);
    let (row, part) = (CUBE_POS / sizes.parts, CUBE_POS % sizes.parts);
    let mut limit = 0u32.runtime();
    if comptime!(config.limited) {
        limit = late::<u32>(limits, row, config.overlaps);
    }
    let summary = summary::<F>(logits, row, part, limit, &mut scratch, &sizes, config);
    if UNIT_POS_X == 0 {
        let at = CUBE_POS * 4;
        summaries[at] = summary.largest;
        summaries[at + 1] = summary.top;
        summaries[at + 2] = summary.bad;
        summaries[at + 3] = summary.sum;
    }
}

/// Where the sum of numbers passes a target, and what is left of the target there. The target is less than the sum, but for rounding:
/// then it is the last positive number.
#[derive(CubeType, Clone, Copy)]
struct Found {
    at: usize,
    left: f32,
}

/// The first of `count` numbers, from number `first` on, where their sum exceeds the target; by one thread. The target's rounding
/// errors are carried along (Neumaier 1974).
#[cube]
fn find(numbers: &[f32], first: usize, count: usize, target: f32) -> Found {
    let mut found = Found {
        at: first,
        left: target,
    };
    let mut left = target;
    let mut error = 0.0f32.runtime();
    let mut open = true.runtime();
    for i in first..first + count {
        let number = numbers[i];
        if open && number > 0.0f32 {
            found.at = i;
            found.left = left + error;
            let next = left - number;
            let lost = select(
                left >= number,
                (left - next) - number,
                left - (next + number),
            );
            left = next;
            error += lost;
            open = left + error >= 0.0f32;
        }
    }
    found
}

/// The sum of `count` numbers, by one thread, with its rounding errors.
#[cube]
fn total(numbers: &[f32], count: usize) -> f32 {
    let mut sum = 0.0f32.runtime();
    let mut error = 0.0f32.runtime();
    for i in 0..count {
        let number = numbers[i];
        let next = sum + number;
        error += select(sum >= number, (sum - next) + number, (number - next) + sum);
        sum = next;
    }
    sum + error
}

/// Draws the symbol of a row, a cube for each.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn choose<F: Numeric, I: Int>(
    logits: &[F],
    limits: &[u32],
    summaries: &[f32],
    uniforms: &[f32],
    tokens: &mut [I],
    log: &mut [I],
    counts: &mut [I],
    position: &mut [I],
    sizes: Sizes,
    #[comptime] config: Config,
    #[define(F)] _element: ElemType,
    #[define(I)] _index: ElemType,
) {
    if CUBE_POS >= sizes.rows {
        terminate!();
    }
    launch_before(config.overlaps, true);
    let row = CUBE_POS;
    let units = comptime!(config.group.units);
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(config.group.scratch(1)));
    let mut sums = Shared::<[f32]>::new_slice(units);
    let mut bands = Shared::<[f32]>::new_slice(comptime!(units / BAND));
    let mut picked = Shared::<[f32]>::new_slice(2usize);
    let unit = UNIT_POS_X as usize;
    let mut limit = 0u32.runtime();
    if comptime!(config.limited) {
        limit = late::<u32>(limits, row, config.overlaps);
    }
    // Parts, one for each thread.
    let mut largest = least();
    let mut top = least();
    let mut bad = least();
    let mut sum = 0.0f32.runtime();
    if comptime!(config.alone) {
        let part = summary::<F>(logits, row, 0usize, limit, &mut scratch, &sizes, config);
        largest = part.largest;
        top = part.top;
        bad = part.bad;
        sum = select(unit == 0, part.sum, 0.0f32);
    } else {
        if unit < sizes.parts {
            let at = (row * sizes.parts + unit) * 4;
            largest = late::<f32>(summaries, at, config.overlaps);
            top = late::<f32>(summaries, at + 1, config.overlaps);
            bad = late::<f32>(summaries, at + 2, config.overlaps);
            sum = late::<f32>(summaries, at + 3, config.overlaps);
        }
        let own = largest;
        largest = largest_of(own, &mut scratch, 0usize, config);
        top = largest_of(
            select(own == largest, top, least()),
            &mut scratch,
            1usize,
            config,
        );
        bad = largest_of(bad, &mut scratch, 0usize, config);
        if comptime!(!config.greedy) {
            let apart = exp_of_negative_number((largest - own) * sizes.scale, config.ptx);
            sum = select(sum > 0.0f32, sum * apart, 0.0f32);
        }
    }
    let slot = usize::cast_from(counts[row]) % sizes.slots;
    let mut token = usize::cast_from(0.0f32 - top);
    if comptime!(!config.greedy) {
        sums[unit] = sum;
        sync_cube();
        if unit == 0 {
            let target = uniforms[slot * sizes.rows + row] * total(&sums, sizes.parts);
            let found = find(&sums, 0usize, sizes.parts, target);
            picked[0] = f32::cast_from(found.at);
            picked[1] = found.left;
        }
        sync_cube();
        // The symbols of the part, some in a row for each thread.
        let first = usize::cast_from(picked[0]) * sizes.per_part;
        let end = (first + sizes.per_part).min(sizes.symbols);
        let each = sizes.per_part.div_ceil(units);
        let first = (first + unit * each).min(end);
        let end = (first + each).min(end);
        let mut sum = 0.0f32;
        for i in first..end {
            let logit = f32::cast_from(late::<F>(logits, row * sizes.stride + i, config.overlaps));
            sum += weight(logit, largest, limit, sizes.scale, config);
        }
        sums[unit] = sum;
        sync_cube();
        // Of bands of threads first: one thread reads a few numbers of each instead of all.
        if unit < comptime!(units / BAND) {
            let mut sum = 0.0f32;
            #[unroll]
            for n in 0..BAND {
                sum += sums[unit * BAND + n];
            }
            bands[unit] = sum;
        }
        sync_cube();
        if unit == 0 {
            let band = find(&bands, 0usize, comptime!(units / BAND), picked[1]);
            let found = find(&sums, band.at * BAND, BAND, band.left);
            picked[0] = f32::cast_from(found.at);
            picked[1] = found.left;
        }
        sync_cube();
        let mut left = picked[1];
        if unit == usize::cast_from(picked[0]) {
            let mut open = true.runtime();
            for i in first..end {
                let logit =
                    f32::cast_from(late::<F>(logits, row * sizes.stride + i, config.overlaps));
                let weight = weight(logit, largest, limit, sizes.scale, config);
                if open && weight > 0.0f32 {
                    token = i;
                    left -= weight;
                    open = left >= 0.0f32;
                }
            }
        }
    }
    let mut writes = unit == 0;
    if comptime!(!config.greedy) {
        writes = unit == usize::cast_from(picked[0]);
    }
    if writes {
        let good = bad == least();
        let fault = usize::cast_from(select(good, 0.0f32, 0.0f32 - bad));
        tokens[row] = select(good, I::cast_from(token), I::from_int(0));
        log[slot * sizes.rows + row] = select(
            good,
            I::cast_from(token),
            I::from_int(-1) - I::cast_from(fault),
        );
        counts[row] += I::from_int(1);
        if row == 0 {
            position[0] += I::from_int(1);
        }
    }
}
