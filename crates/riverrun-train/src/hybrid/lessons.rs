//! What recorded runs teach about others.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use burn::tensor::Device;

use super::observation::Observation;
use super::predictors::{Ensemble, EnsembleConfig, Lesson, Predictor};
use super::trajectory::stretches;
use crate::{Error, RunDir};

/// Settings of [`learn`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct LearnConfig {
    /// The ensemble.
    pub ensemble: EnsembleConfig,
    /// Passes over all lessons.
    pub passes: u32,
    /// Seed of the lessons' order.
    pub seed: u64,
}

impl Default for LearnConfig {
    fn default() -> Self {
        Self {
            ensemble: EnsembleConfig::default(),
            passes: 3,
            seed: 0,
        }
    }
}

/// Mean errors over windows that no lesson contains.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct Score {
    /// Mean of `|ln(forecast / loss)|` over the windows of each forecast.
    pub loss: f64,
    /// Mean of `|predicted - found|` over the layer groups: both are multiples of the mean of the three updates before.
    pub update: f64,
}

/// An ensemble that has learned from runs.
#[non_exhaustive]
pub struct Learned {
    /// The ensemble, to be [saved](Ensemble::save_file).
    pub ensemble: Ensemble,
    /// Lessons of a pass.
    pub lessons: usize,
    /// Forecasts of windows that were held out, the last tenth of each stretch without predictions; the scores are 0 where there are
    /// none.
    pub held_out: usize,
    /// The errors of the ensemble there.
    pub score: Score,
    /// The errors there of saying that neither the loss nor the updates change.
    pub unchanged: Score,
}

/// Trains an ensemble on the trajectories of runs, in random order. `done` is called after each lesson with the number of lessons so
/// far and the number of all.
///
/// # Errors
/// A run without a [trajectory](super::HybridConfig::trajectory), or with a damaged one; trajectories without a lesson in them; as
/// [`Ensemble::new`].
pub fn learn(
    runs: &[RunDir],
    config: &LearnConfig,
    device: &Device,
    done: &mut dyn FnMut(u64, u64),
) -> Result<Learned, Error> {
    let mut ensemble = Ensemble::new(config.ensemble.clone(), device)?;
    let (mut lessons, mut held_out) = (Vec::new(), Vec::new());
    for run in runs {
        for stretch in stretches(run.trajectory()?) {
            let back = config.ensemble.back;
            let seen = stretch.len() - (stretch.len() / 10).max(1);
            let taught = windows(&stretch[..seen], back);
            lessons.extend(taught.filter_map(|(before, after)| Lesson::new(before, after)));
            // They begin at the last window of the lessons, and lead to windows that are in none.
            let rest = windows(&stretch[seen - 1..], back);
            held_out.extend(rest.map(|(before, after)| (before.clone(), after.to_vec())));
        }
    }
    if lessons.is_empty() {
        let windows = config.ensemble.back + 1;
        let reason = format!(
            "the trajectories have no {windows} windows one after the other with losses above 0, and as many held out"
        );
        return Err(Error::Unsupported(reason));
    }
    let mut random = ChaCha8Rng::seed_from_u64(config.seed);
    let all = lessons.len() as u64 * u64::from(config.passes);
    let mut count = 0;
    for _ in 0..config.passes {
        lessons.shuffle(&mut random);
        for lesson in &lessons {
            ensemble.take_lesson(lesson)?;
            count += 1;
            done(count, all);
        }
    }
    let [score, unchanged] = scores(&ensemble, &held_out);
    Ok(Learned {
        lessons: lessons.len(),
        held_out: held_out.len(),
        score,
        unchanged,
        ensemble,
    })
}

/// Each observation of a stretch that has `back` observations after it, with these.
fn windows(
    stretch: &[Observation],
    back: usize,
) -> impl Iterator<Item = (&Observation, &[Observation])> {
    stretch
        .windows(back + 1)
        .map(|window| (&window[0], &window[1..]))
}

/// The errors of the ensemble, and of saying that nothing changes.
fn scores(ensemble: &Ensemble, held_out: &[(Observation, Vec<Observation>)]) -> [Score; 2] {
    let (mut sums, mut losses, mut updates) = ([Score::default(); 2], 0usize, 0usize);
    for (before, after) in held_out {
        let forecast = ensemble.forecast(before, after.len());
        for (n, seen) in after.iter().enumerate() {
            let forecast = forecast.as_ref().and_then(|it| it.loss((n + 1) as f64));
            let both = [forecast.unwrap_or(before.loss), before.loss];
            let off = both.map(|loss| (loss / seen.loss).ln().abs());
            if off.iter().all(|off| off.is_finite()) {
                sums[0].loss += off[0];
                sums[1].loss += off[1];
                losses += 1;
            }
        }
        let (Some(multiples), Some(seen)) = (ensemble.multiples(before, 1), after.first()) else {
            continue;
        };
        for (said, found) in multiples.iter().zip(seen.continued()) {
            sums[0].update += (said - found).abs();
            sums[1].update += (1.0 - found).abs();
            updates += 1;
        }
    }
    sums.map(|sum| Score {
        loss: sum.loss / losses.max(1) as f64,
        update: sum.update / updates.max(1) as f64,
    })
}
