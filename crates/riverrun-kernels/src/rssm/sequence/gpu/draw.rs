//! The samples of a step: the arithmetic of `rssm::gpu::kernels::draw`, number by number and in the same order, so that the same
//! logits give the same samples. A thread has two classes of a sequence; maximum, sum and best class are found by every thread of
//! a categorical for itself.

use cubecl::prelude::*;

use super::plan::Config;
use crate::gpu::math::exp_of_negative_number;
use crate::gpu::words::Pair;

/// The places of a thread's logits and of their categoricals in the shared memory of the draws.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Place {
    /// The first of both classes.
    pub own: usize,
    /// The first class of the categorical.
    pub first: usize,
}

#[cube]
pub(super) fn place(sequence: usize, unit: usize, #[comptime] config: Config) -> Place {
    let own = sequence * comptime!(config.draws()) + unit;
    // A row has whole categoricals.
    Place {
        own,
        first: own - own % comptime!(config.classes),
    }
}

/// `exp(l - largest)` of the own classes, of the logits in `row`.
#[cube]
pub(super) fn exponentials(row: &[f32], place: &Place, #[comptime] config: Config) -> Pair {
    let mut most = row[place.first];
    for class in 1..comptime!(config.classes) {
        let l = row[place.first + class];
        most = select(l > most, l, most);
    }
    let mut e = Pair::new(0.0f32);
    #[unroll]
    for i in 0..2usize {
        e.insert(i, exp_of_negative_number(most - row[place.own + i], true));
    }
    e
}

/// The sum of the exponentials in `row`.
#[cube]
pub(super) fn sum(row: &[f32], place: &Place, #[comptime] config: Config) -> f32 {
    let mut sum = 0.0f32;
    for class in 0..comptime!(config.classes) {
        sum += row[place.first + class];
    }
    sum
}

/// `ln p + noise` of the own classes.
#[cube]
pub(super) fn scores(
    e: Pair,
    sum: f32,
    noise: Pair,
    unimix: f32,
    #[comptime] config: Config,
) -> Pair {
    let classes = comptime!(config.classes);
    let uniform = unimix / f32::cast_from(classes);
    let mut scores = Pair::new(0.0f32);
    #[unroll]
    for i in 0..2usize {
        let q = e.extract(i) / sum;
        let p = (1.0f32 - unimix) * q + uniform;
        scores.insert(i, p.ln() + noise.extract(i));
    }
    scores
}

/// The own part of the sample, by the scores in `row`.
#[cube]
pub(super) fn sample(row: &[f32], place: &Place, sum: f32, #[comptime] config: Config) -> Pair {
    let mut best = 0usize;
    let mut highest = 0.0f32;
    for class in 0..comptime!(config.classes) {
        let score = row[place.first + class];
        if class == 0 || score > highest {
            best = class;
            highest = score;
        }
    }
    // Where a logit is NaN, so is the sum, and no comparison holds.
    let nothing = select(sum > 0.0f32, 0.0f32, sum);
    let mut sample = Pair::new(0.0f32);
    #[unroll]
    for i in 0..2usize {
        let hot = select(place.own + i == place.first + best, 1.0f32, 0.0f32);
        sample.insert(i, hot + nothing);
    }
    sample
}
