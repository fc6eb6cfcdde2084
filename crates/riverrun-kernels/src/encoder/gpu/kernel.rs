//! The kernel: three reductions over a run's history, then its features.

use cubecl::prelude::*;

use crate::encoder::scalars::{GRADIENT_AVERAGES, GRADIENT_COUNT, LOSS_AVERAGES, LOSS_COUNT, REST};
use crate::encoder::{BOUND, CONSTANT, FEATURES, LEAST, SCALARS, TINY, WINDOW};
use crate::gpu::group::{Fold, Group, fold};

/// Sums of a pass.
const SUMS: usize = 10;

#[cube]
fn log10(x: f32) -> f32 {
    x.max(comptime!(LEAST as f32)).ln() * comptime!(std::f32::consts::LOG10_E)
}

/// A variance about a mean; 0 if it is only rounding.
#[cube]
fn settle(variance: f32, mean: f32) -> f32 {
    let least = comptime!(CONSTANT as f32) * mean;
    select(variance <= least * least, 0.0f32, variance)
}

/// A difference of numbers of the size of `scale`; 0 if it is only rounding.
#[cube]
fn apart(difference: f32, scale: f32) -> f32 {
    let least = comptime!(CONSTANT as f32) * scale.abs();
    select(difference.abs() <= least, 0.0f32, difference)
}

#[cube]
fn bound(x: f32) -> f32 {
    x.max(comptime!(-BOUND as f32)).min(comptime!(BOUND as f32))
}

/// 1 if a change and the one before differ in sign.
#[cube]
fn sign_change(window: &[f32], n: usize) -> f32 {
    let product = (window[n] - window[n - 1]) * (window[n - 1] - window[n - 2]);
    select(product < 0.0f32, 1.0f32, 0.0f32)
}

#[cube]
fn zeros(values: &mut Array<f32>, #[comptime] count: usize) {
    #[unroll]
    for c in 0..count {
        values[c] = 0.0f32;
    }
}

/// Cubes: at least one for each run.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn encode_states(
    losses: &[f32],
    gradients: &[f32],
    scalars: &[f32],
    features: &mut [f32],
    runs: usize,
    losses_each: usize,
    gradients_each: usize,
    #[comptime] group: Group,
) {
    let run = CUBE_POS;
    if run >= runs {
        terminate!();
    }
    let tiny = comptime!(TINY as f32);
    let units = comptime!(group.units);
    let unit = UNIT_POS_X as usize;
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(group.scratch(SUMS)));
    let mut window_l = Shared::<[f32]>::new_slice(WINDOW);
    let mut window_g = Shared::<[f32]>::new_slice(WINDOW);
    let own = run * SCALARS;
    let count_l = usize::cast_from(scalars[own + LOSS_COUNT].max(0.0f32)).min(losses_each);
    let count_g = usize::cast_from(scalars[own + GRADIENT_COUNT].max(0.0f32)).min(gradients_each);
    let (first_l, first_g) = (run * losses_each, run * gradients_each);
    let (full_l, full_g) = (count_l >= WINDOW, count_g >= WINDOW);

    let mut sums = Array::<f32>::new(SUMS);
    let mut extremes = Array::<f32>::new(4usize);
    zeros(&mut sums, SUMS);
    #[unroll]
    for c in 0..4usize {
        extremes[c] = f32::cast_from(f32::MIN);
    }
    let mut i = unit;
    while i < count_l {
        let x = losses[first_l + i];
        sums[0] += x;
        extremes[0] = extremes[0].max(x);
        extremes[1] = extremes[1].max(0.0f32 - x);
        i += units;
    }
    i = unit;
    while i < count_g {
        let x = gradients[first_g + i];
        sums[1] += x;
        extremes[2] = extremes[2].max(x);
        extremes[3] = extremes[3].max(0.0f32 - x);
        i += units;
    }
    if unit < WINDOW {
        window_l[unit] = 0.0f32;
        window_g[unit] = 0.0f32;
        if full_l {
            let x = losses[first_l + count_l - WINDOW + unit];
            window_l[unit] = x;
            // Four means of eight.
            #[unroll]
            for part in 0..4usize {
                if unit / 8 == part {
                    sums[2 + part] = x;
                }
            }
        }
        if full_g {
            let x = gradients[first_g + count_g - WINDOW + unit];
            window_g[unit] = x;
            sums[6] = x.max(comptime!(LEAST as f32)).ln();
            if unit > 0 {
                sums[7] = x;
            }
        }
    }
    fold(&mut sums, &mut scratch, 0usize, SUMS, Fold::Sum, group);
    fold(
        &mut extremes,
        &mut scratch,
        1usize,
        4usize,
        Fold::Max,
        group,
    );
    let number_l = f32::cast_from(count_l.max(1));
    let number_g = f32::cast_from(count_g.max(1));
    let mean_l = sums[0] / number_l;
    let mean_g = sums[1] / number_g;
    let eighths = 0.125f32;
    let m0 = sums[2] * eighths;
    let m1 = sums[3] * eighths;
    let m2 = sums[4] * eighths;
    let m3 = sums[5] * eighths;
    let recent = (m2 + m3) * 0.5f32;
    let before = (m0 + m1) * 0.5f32;
    let mean_window = (recent + before) * 0.5f32;
    let wide = comptime!(1.0 / WINDOW as f32);
    let narrow = comptime!(1.0 / (WINDOW - 1) as f32);
    let mean_log = sums[6] * wide;
    let mean_change = (window_l[WINDOW - 1] - window_l[0]) * narrow;
    let mean_paired = sums[7] * narrow;

    zeros(&mut sums, SUMS);
    i = unit;
    while i < count_l {
        let x = losses[first_l + i] - mean_l;
        sums[0] = fma(x, x, sums[0]);
        i += units;
    }
    i = unit;
    while i < count_g {
        let x = gradients[first_g + i] - mean_g;
        sums[1] = fma(x, x, sums[1]);
        i += units;
    }
    if unit < WINDOW {
        let place = f32::cast_from(unit) - comptime!((WINDOW - 1) as f32 / 2.0);
        if full_l {
            let x = window_l[unit] - mean_window;
            sums[2] = x * x;
            sums[3] = place * x;
            if unit >= 16 {
                let x = window_l[unit] - recent;
                sums[4] = x * x;
            }
            if unit >= 2 {
                sums[8] = sign_change(&window_l, unit);
            }
        }
        if full_g {
            let x = window_g[unit].max(comptime!(LEAST as f32)).ln() - mean_log;
            sums[5] = x * x;
            sums[6] = place * x;
            if unit >= 2 {
                sums[9] = sign_change(&window_g, unit);
            }
        }
    }
    fold(&mut sums, &mut scratch, 0usize, SUMS, Fold::Sum, group);
    let mut pairs = Array::<f32>::new(3usize);
    zeros(&mut pairs, 3usize);
    if unit < WINDOW && unit > 0 {
        let x = window_l[unit] - window_l[unit - 1] - mean_change;
        let y = window_g[unit] - mean_paired;
        pairs[0] = x * x;
        pairs[1] = y * y;
        pairs[2] = x * y;
    }
    fold(&mut pairs, &mut scratch, 1usize, 3usize, Fold::Sum, group);

    if unit == 0 {
        let out = run * FEATURES;
        for k in 0..FEATURES {
            features[out + k] = 0.0f32;
        }
        features[out + 6] = 1.0f32;
        let squares = comptime!((WINDOW * (WINDOW * WINDOW - 1)) as f32 / 12.0);
        let whole = comptime!(WINDOW as f32);
        let rate = comptime!(1.0 / (WINDOW - 2) as f32);
        if count_l > 0 {
            let now = losses[first_l + count_l - 1];
            let (most, least) = (extremes[0], 0.0f32 - extremes[1]);
            let spread = settle(sums[0] / number_l, mean_l);
            let deviation = spread.sqrt();
            features[out] = now;
            features[out + 1] = mean_l;
            features[out + 2] = deviation;
            features[out + 3] = least;
            features[out + 4] = most;
            #[unroll]
            for k in 0..3usize {
                features[out + 26 + k] = bound(scalars[own + LOSS_AVERAGES + k]);
            }
            let fast = scalars[own + LOSS_AVERAGES];
            features[out + 29] = bound(apart(fast - scalars[own + LOSS_AVERAGES + 2], fast));
            if deviation > 0.0f32 {
                features[out + 38] = bound((now - mean_l) / deviation.max(tiny));
            }
            features[out + 39] = bound((now - least) / (most - least).max(tiny));
            if full_l {
                let scale = most.abs().max(least.abs());
                let velocity = apart(m3 - m2, scale) * eighths;
                let earlier = apart(m2 - m1, scale) * eighths;
                let acceleration = apart(velocity - earlier, scale * eighths) * eighths;
                let magnitude = log10(1.0f32 + 1e6f32 * velocity.abs());
                let deviation_window = settle(sums[2] * wide, mean_window);
                let recent_variance = settle(sums[4] * 0.0625f32, recent);
                features[out + 5] = recent - before;
                features[out + 6] = recent / before.max(tiny);
                features[out + 30] = bound(velocity);
                features[out + 31] = bound(acceleration);
                features[out + 32] =
                    bound(select(velocity < 0.0f32, 0.0f32 - magnitude, magnitude));
                features[out + 33] = select(
                    acceleration > 0.0f32,
                    1.0f32,
                    select(acceleration < 0.0f32, -1.0f32, 0.0f32),
                );
                features[out + 34] = bound(recent_variance);
                features[out + 35] = bound(recent_variance / spread.max(tiny));
                let turns = sums[8] * rate;
                features[out + 36] = turns;
                features[out + 37] =
                    bound(turns * deviation_window.sqrt() / mean_window.abs().max(tiny));
                if deviation_window > 0.0f32 {
                    let product = sums[3];
                    features[out + 40] = bound(product / squares);
                    features[out + 41] =
                        bound(product / squares * (product / (deviation_window * whole)));
                }
            }
        }
        if count_g > 0 {
            let now = gradients[first_g + count_g - 1];
            let (most, least) = (extremes[2], 0.0f32 - extremes[3]);
            let deviation = settle(sums[1] / number_g, mean_g).sqrt();
            let centre = mean_g.max(tiny);
            features[out + 8] = now;
            features[out + 9] = mean_g;
            features[out + 10] = deviation;
            features[out + 11] = least;
            features[out + 12] = most;
            features[out + 13] = log10(now);
            features[out + 14] = (now / centre).min(comptime!(BOUND as f32));
            features[out + 15] = deviation / centre;
            #[unroll]
            for k in 0..3usize {
                features[out + 42 + k] = bound(scalars[own + GRADIENT_AVERAGES + k]);
            }
            let fast = scalars[own + GRADIENT_AVERAGES];
            features[out + 45] = bound(apart(fast - scalars[own + GRADIENT_AVERAGES + 2], fast));
            if deviation > 0.0f32 {
                features[out + 47] = bound((now - mean_g) / deviation.max(tiny));
            }
            features[out + 48] = bound(most / centre);
            features[out + 50] = log10(least);
            if full_g {
                if settle(sums[5] * wide, mean_log) > 0.0f32 {
                    features[out + 46] = bound(sums[6] / squares);
                }
                features[out + 49] = sums[9] * rate;
                if full_l {
                    let changes = settle(pairs[0] * narrow, mean_window);
                    let norms = settle(pairs[1] * narrow, mean_paired);
                    if changes > 0.0f32 && norms > 0.0f32 {
                        // Two roots, because the product may overflow.
                        let both = changes.sqrt() * norms.sqrt();
                        features[out + 51] = bound(pairs[2] * narrow / both);
                    }
                }
            }
        }
        let rest = own + REST;
        if scalars[rest] > 0.0f32 {
            let step = scalars[rest + 1];
            let momentum = scalars[rest + 2].abs();
            let variance = scalars[rest + 4];
            let learning_rate = scalars[rest + 6];
            features[out + 7] = step * 1e-4f32;
            #[unroll]
            for k in 0..4usize {
                features[out + 16 + k] = scalars[rest + 2 + k];
            }
            features[out + 20] = log10(learning_rate);
            features[out + 21] = scalars[rest + 7];
            features[out + 22] = scalars[rest + 8];
            features[out + 24] = scalars[rest + 9];
            features[out + 25] = scalars[rest + 10] * 0.01f32;
            features[out + 52] = log10(momentum);
            features[out + 53] = log10(variance);
            features[out + 54] = bound(momentum / (variance.max(0.0f32) + tiny).sqrt());
            if scalars[rest + 13] > 0.0f32 {
                features[out + 55] = bound(learning_rate / scalars[rest + 13]);
            }
            if scalars[rest + 15] > 0.0f32 {
                features[out + 56] = log10(learning_rate) - log10(scalars[rest + 14]);
            }
            features[out + 57] = bound((1.0f32 + step).ln() * 0.1f32);
            let phase = usize::cast_from(scalars[rest + 9].max(0.0f32)).min(3usize);
            features[out + 58 + phase] = 1.0f32;
            features[out + 62] = bound(scalars[rest + 11] * 0.2f32);
            features[out + 63] = bound(scalars[rest + 12]);
        }
    }
}
