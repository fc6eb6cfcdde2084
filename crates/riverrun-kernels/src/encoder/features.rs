//! The formulas: from statistics and windows to the 64 features.

use super::ring::{Statistics, sum};
use super::scalars::Scalars;
use super::{BOUND, CONSTANT, FEATURES, LEAST, TINY, WINDOW};

/// A series: statistics, its newest value, and the last [`WINDOW`] values if it has that many.
pub(super) struct Series<'a> {
    pub statistics: Statistics,
    pub now: f64,
    pub count: usize,
    pub last: Option<&'a [f64; WINDOW]>,
    /// Moving averages.
    pub averages: [f64; 3],
}

fn mean(x: &[f64]) -> f64 {
    sum(x) / x.len() as f64
}

/// A difference of numbers of the size of `scale`; 0 if it is only rounding.
fn apart(difference: f64, scale: f64) -> f64 {
    if difference.abs() <= CONSTANT * scale.abs() {
        0.0
    } else {
        difference
    }
}

/// The variance about a mean; 0 if it is only rounding.
fn settle(variance: f64, mean: f64) -> f64 {
    let least = CONSTANT * mean;
    if variance <= least * least {
        0.0
    } else {
        variance
    }
}

fn variance(x: &[f64]) -> f64 {
    let centre = mean(x);
    let mut lanes = [0.0; 8];
    for chunk in x.chunks_exact(8) {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane += (x - centre) * (x - centre);
        }
    }
    settle(sum(&lanes) / x.len() as f64, centre)
}

/// The slope of the regression line through consecutive values, and its R².
fn line(x: &[f64; WINDOW]) -> (f64, f64) {
    // Positions relative to the middle, and the sum of their squares.
    const MIDDLE: f64 = (WINDOW - 1) as f64 / 2.0;
    const SQUARES: f64 = (WINDOW * (WINDOW * WINDOW - 1)) as f64 / 12.0;
    let spread = variance(x) * WINDOW as f64;
    if spread == 0.0 {
        return (0.0, 0.0);
    }
    let centre = mean(x);
    let mut lanes = [0.0; 8];
    for n in 0..WINDOW {
        lanes[n % 8] += (n as f64 - MIDDLE) * (x[n] - centre);
    }
    let product = sum(&lanes);
    (product / SQUARES, product * product / (SQUARES * spread))
}

/// The fraction of neighbouring changes that differ in sign.
fn turns(x: &[f64; WINDOW]) -> f64 {
    let mut count = 0;
    for n in 2..WINDOW {
        count += u32::from((x[n] - x[n - 1]) * (x[n - 1] - x[n - 2]) < 0.0);
    }
    f64::from(count) / (WINDOW - 2) as f64
}

/// The correlation of the changes of `l` with `g`.
fn correlation(l: &[f64; WINDOW], g: &[f64; WINDOW]) -> f64 {
    const N: usize = WINDOW - 1;
    let mut changes = [0.0; N];
    for n in 0..N {
        changes[n] = l[n + 1] - l[n];
    }
    let (a, b) = (mean(&changes), mean(&g[1..]));
    let (mut aa, mut bb, mut ab) = ([0.0; 4], [0.0; 4], [0.0; 4]);
    for n in 0..N {
        let (x, y) = (changes[n] - a, g[n + 1] - b);
        aa[n % 4] += x * x;
        bb[n % 4] += y * y;
        ab[n % 4] += x * y;
    }
    let all = |x: [f64; 4]| x.iter().sum::<f64>() / N as f64;
    // Changes are differences of losses, so rounding depends on the size of the losses.
    let (aa, bb) = (settle(all(aa), mean(l)), settle(all(bb), b));
    if aa == 0.0 || bb == 0.0 {
        return 0.0;
    }
    all(ab) / (aa * bb).sqrt()
}

fn log10(x: f64) -> f64 {
    x.max(LEAST).log10()
}

/// `ln max(g, 1e-10)` of a window.
fn logarithms(g: &[f64; WINDOW]) -> [f64; WINDOW] {
    g.map(|g| g.max(LEAST).ln())
}

/// All features. `logs` are the logarithms of the window of `g`, where they are known already.
pub(super) fn features(
    l: &Series<'_>,
    g: &Series<'_>,
    logs: Option<&[f64; WINDOW]>,
    s: &Scalars,
) -> [f32; FEATURES] {
    let mut f = [0.0_f64; FEATURES];
    f[6] = 1.0;
    if l.count > 0 {
        let all = l.statistics;
        let spread = settle(all.variance, all.mean);
        let deviation = spread.sqrt();
        f[0] = l.now;
        f[1] = all.mean;
        f[2] = deviation;
        f[3] = all.min;
        f[4] = all.max;
        f[26..29].copy_from_slice(&l.averages);
        f[29] = apart(l.averages[0] - l.averages[2], l.averages[0]);
        if deviation > 0.0 {
            f[38] = (l.now - all.mean) / deviation.max(TINY);
        }
        f[39] = (l.now - all.min) / (all.max - all.min).max(TINY);
        if let Some(last) = l.last {
            let means: [f64; 4] = std::array::from_fn(|n| mean(&last[n * 8..(n + 1) * 8]));
            let (before, recent) = ((means[0] + means[1]) / 2.0, (means[2] + means[3]) / 2.0);
            f[5] = recent - before;
            f[6] = recent / before.max(TINY);
            let scale = all.min.abs().max(all.max.abs());
            let velocity = apart(means[3] - means[2], scale) / 8.0;
            let earlier = apart(means[2] - means[1], scale) / 8.0;
            let acceleration = apart(velocity - earlier, scale / 8.0) / 8.0;
            f[30] = velocity;
            f[31] = acceleration;
            let sign = |x: f64| if x == 0.0 { 0.0 } else { x.signum() };
            f[32] = sign(velocity) * (1.0 + 1e6 * velocity.abs()).log10();
            f[33] = sign(acceleration);
            f[34] = variance(&last[16..]);
            f[35] = f[34] / spread.max(TINY);
            f[36] = turns(last);
            f[37] = f[36] * variance(last).sqrt() / mean(last).abs().max(TINY);
            (f[40], f[41]) = line(last);
        }
    }
    if g.count > 0 {
        let all = g.statistics;
        let deviation = settle(all.variance, all.mean).sqrt();
        let centre = all.mean.max(TINY);
        f[8] = g.now;
        f[9] = all.mean;
        f[10] = deviation;
        f[11] = all.min;
        f[12] = all.max;
        f[13] = log10(g.now);
        f[14] = (g.now / centre).min(BOUND);
        f[15] = deviation / centre;
        f[42..45].copy_from_slice(&g.averages);
        f[45] = apart(g.averages[0] - g.averages[2], g.averages[0]);
        if deviation > 0.0 {
            f[47] = (g.now - all.mean) / deviation.max(TINY);
        }
        f[48] = all.max / centre;
        f[50] = log10(all.min);
        if let Some(last) = g.last {
            f[46] = match logs {
                Some(logs) => line(logs).0,
                None => line(&logarithms(last)).0,
            };
            f[49] = turns(last);
            if let Some(losses) = l.last {
                f[51] = correlation(losses, last);
            }
        }
    }
    if s.seen {
        f[7] = s.step / 1e4;
        f[16..18].copy_from_slice(&s.momentum);
        f[18..20].copy_from_slice(&s.variance);
        f[20] = log10(s.learning_rate);
        f[21..23].copy_from_slice(&s.beta_powers);
        f[24] = s.phase;
        f[25] = s.steps_in_phase / 100.0;
        f[52] = log10(s.momentum[0].abs());
        f[53] = log10(s.variance[0]);
        f[54] = s.momentum[0].abs() / (s.variance[0].max(0.0) + TINY).sqrt();
        if s.peak_rate > 0.0 {
            f[55] = s.learning_rate / s.peak_rate;
        }
        if let Some(earlier) = s.earlier_rate {
            f[56] = (s.learning_rate.max(LEAST) / earlier.max(LEAST)).log10();
        }
        f[57] = s.step.ln_1p() / 10.0;
        f[58 + s.phase as usize] = 1.0;
        f[62] = s.predict_phases / 5.0;
        f[63] = s.prediction_error;
    }
    for x in &mut f[26..] {
        *x = x.clamp(-BOUND, BOUND);
    }
    // Quotients by 1e-8 of numbers near the largest.
    f.map(|x| x.clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32)
}
