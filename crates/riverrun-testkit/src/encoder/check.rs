//! Random training runs, the formulas in `f64`, and the rule that accepts features.

use super::{BOUND, Config, FEATURES, KEEPS, LEAST, Observation, Phase, StateEncoder, TINY};
use crate::check::{Comparison, Random};

/// A run of `steps` steps: a loss that falls with noise, norms that follow it, a rate that decays.
pub fn random_run(steps: usize, seed: u64) -> Vec<Observation> {
    let mut random = Random::new(seed);
    let phases = [Phase::WarmUp, Phase::Full, Phase::Predict, Phase::Correct];
    (0..steps)
        .map(|n| {
            let fall = (-(n as f64) / 300.0).exp();
            let loss = 1.0 + 3.0 * fall + random.within(0.2);
            let norm = (0.5 + fall + random.within(0.3)).abs() + 0.01;
            let mut small = || random.within(1e-3) as f32;
            Observation::new(n as u64, loss as f32, norm as f32, (1e-3 * fall) as f32)
                .with_moments([small(), small().abs()], [small().abs(), small().abs()])
                .with_phase(phases[n / 7 % 4], (n % 7) as u32)
                .with_prediction((n % 4) as u32, small())
        })
        .collect()
}

/// An encoder that has seen a run.
///
/// # Panics
/// If the configuration is refused.
pub fn encoded(config: Config, run: &[Observation]) -> StateEncoder {
    let mut encoder = StateEncoder::new(config).expect("a good configuration");
    run.iter().for_each(|o| encoder.push(o));
    encoder
}

fn mean(x: &[f64]) -> f64 {
    x.iter().sum::<f64>() / x.len() as f64
}

fn variance(x: &[f64]) -> f64 {
    let centre = mean(x);
    mean(&x.iter().map(|x| (x - centre).powi(2)).collect::<Vec<_>>())
}

fn slope_and_share(y: &[f64]) -> (f64, f64) {
    let places: Vec<f64> = (0..y.len()).map(|n| n as f64).collect();
    let (a, b) = (mean(&places), mean(y));
    let products = places.iter().zip(y).map(|(x, y)| (x - a) * (y - b));
    let product = mean(&products.collect::<Vec<_>>());
    let (x, y) = (variance(&places), variance(y));
    (product / x, product * product / (x * y))
}

fn turns(x: &[f64]) -> f64 {
    let changes: Vec<f64> = x.windows(2).map(|x| x[1] - x[0]).collect();
    let turns = changes.windows(2).filter(|x| x[0] * x[1] < 0.0).count();
    turns as f64 / (changes.len() - 1) as f64
}

/// The features of a run whose numbers are finite and whose series are not constant, from the whole of it, in `f64`.
pub fn reference(config: &Config, run: &[Observation]) -> [f64; FEATURES] {
    let mut f = [0.0; FEATURES];
    f[6] = 1.0;
    let Some(o) = run.last() else { return f };
    let series = |value: fn(&Observation) -> f32| -> Vec<f64> {
        run.iter().map(|o| f64::from(value(o))).collect()
    };
    let averages = |x: &[f64]| {
        KEEPS.map(|keep| {
            x[1..]
                .iter()
                .fold(x[0], |average, x| keep * average + (1.0 - keep) * x)
        })
    };
    let (all_l, all_g) = (series(|o| o.loss), series(|o| o.gradient_norm));
    let l = &all_l[all_l.len().saturating_sub(config.losses)..];
    let g = &all_g[all_g.len().saturating_sub(config.gradients)..];
    let least = |x: &[f64]| x.iter().copied().fold(f64::INFINITY, f64::min);
    let most = |x: &[f64]| x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let log10 = |x: f64| x.max(LEAST).log10();

    let now = *l.last().unwrap_or(&0.0);
    f[0] = now;
    (f[1], f[2], f[3], f[4]) = (mean(l), variance(l).sqrt(), least(l), most(l));
    let average = averages(&all_l);
    f[26..29].copy_from_slice(&average);
    f[29] = average[0] - average[2];
    if l.len() > 1 {
        f[38] = (now - mean(l)) / variance(l).sqrt().max(TINY);
    }
    f[39] = (now - least(l)) / (most(l) - least(l)).max(TINY);
    if let Some(last) = l.last_chunk::<32>() {
        f[5] = mean(&last[16..]) - mean(&last[..16]);
        f[6] = mean(&last[16..]) / mean(&last[..16]).max(TINY);
        f[30] = (mean(&last[24..]) - mean(&last[16..24])) / 8.0;
        let earlier = (mean(&last[16..24]) - mean(&last[8..16])) / 8.0;
        f[31] = (f[30] - earlier) / 8.0;
        f[32] = f[30].signum() * (1.0 + 1e6 * f[30].abs()).log10();
        f[33] = f[31].signum();
        f[34] = variance(&last[16..]);
        f[35] = f[34] / variance(l).max(TINY);
        f[36] = turns(last);
        f[37] = f[36] * variance(last).sqrt() / mean(last).abs().max(TINY);
        (f[40], f[41]) = slope_and_share(last);
    }
    let now = *g.last().unwrap_or(&0.0);
    f[8] = now;
    (f[9], f[10], f[11], f[12]) = (mean(g), variance(g).sqrt(), least(g), most(g));
    f[13] = log10(now);
    f[14] = (now / mean(g).max(TINY)).min(BOUND);
    f[15] = variance(g).sqrt() / mean(g).max(TINY);
    let average = averages(&all_g);
    f[42..45].copy_from_slice(&average);
    f[45] = average[0] - average[2];
    if g.len() > 1 {
        f[47] = (now - mean(g)) / variance(g).sqrt().max(TINY);
    }
    f[48] = most(g) / mean(g).max(TINY);
    f[50] = log10(least(g));
    if let Some(last) = g.last_chunk::<32>() {
        let logs: Vec<f64> = last.iter().map(|g| g.max(LEAST).ln()).collect();
        f[46] = slope_and_share(&logs).0;
        f[49] = turns(last);
        if let Some(losses) = l.last_chunk::<32>() {
            let changes: Vec<f64> = losses.windows(2).map(|x| x[1] - x[0]).collect();
            let (a, b) = (mean(&changes), mean(&last[1..]));
            let products = changes
                .iter()
                .zip(&last[1..])
                .map(|(x, y)| (x - a) * (y - b));
            let product = mean(&products.collect::<Vec<_>>());
            f[51] = product / (variance(&changes) * variance(&last[1..])).sqrt();
        }
    }
    let [momentum, momentum_deviation] = o.momentum.map(f64::from);
    let [second, second_deviation] = o.variance.map(f64::from);
    let rates = series(|o| o.learning_rate);
    let rate = f64::from(o.learning_rate);
    f[7] = o.step as f64 / 1e4;
    (f[16], f[17], f[18], f[19]) = (momentum, momentum_deviation, second, second_deviation);
    f[20] = log10(rate);
    f[21] = config.betas[0].powf(o.step as f64);
    f[22] = config.betas[1].powf(o.step as f64);
    f[24] = f64::from(o.phase as u8);
    f[25] = f64::from(o.steps_in_phase) / 100.0;
    f[52] = log10(momentum.abs());
    f[53] = log10(second);
    f[54] = momentum.abs() / (second + TINY).sqrt();
    f[55] = rate / most(&rates);
    if rates.len() > 16 {
        f[56] = log10(rate) - log10(rates[rates.len() - 17]);
    }
    f[57] = (1.0 + o.step as f64).ln() / 10.0;
    f[58 + o.phase as usize] = 1.0;
    f[62] = f64::from(o.predict_phases) / 5.0;
    f[63] = f64::from(o.prediction_error);
    f[26..].iter_mut().for_each(|x| *x = x.clamp(-BOUND, BOUND));
    f
}

/// The error of a feature that passes: relatively 1e-4 if the history was summed in `f32` (`single`), else 1e-6. Feature 32 is a
/// logarithm of differences of means, whose rounding it enlarges.
pub fn allowed(reference: &[f64; FEATURES], n: usize, single: bool) -> f64 {
    let relative = if single { 1e-4 } else { 1e-6 };
    let allowed = relative * reference[n].abs().max(1.0);
    if n != 32 || !single {
        return allowed;
    }
    let rounding = 4.0 * f64::from(f32::EPSILON) * reference[4].abs() / 8.0;
    let slope = 1e6 / (1.0 + 1e6 * reference[30].abs()) / std::f64::consts::LN_10;
    allowed + slope * rounding
}

/// Compares features one by one.
pub fn compare(found: &[f32], reference: &[f64; FEATURES], single: bool) -> Comparison {
    let found: Vec<f64> = found.iter().map(|x| f64::from(*x)).collect();
    let allowed = |n| allowed(reference, n, single);
    crate::check::worst("features", &found, reference, allowed)
}
