//! The table of a rung.

use riverrun_train::hybrid::Counts;

use super::{Run, Runs};
use crate::commands::bench::row::Row;

/// The middle one. Odd numbers of seeds have one; of an even number it is the upper of the two.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

impl Runs {
    /// The median over the seeds.
    pub fn over(&self, value: impl Fn(&Run) -> f64) -> f64 {
        median(self.runs.iter().map(value))
    }

    /// A count of a hybrid run, or the steps of plain training.
    pub fn counts(&self, of: impl Fn(Counts) -> u64, plain: u64) -> f64 {
        self.over(|run| match &run.hybrid {
            Some(status) => of(status.counts) as f64,
            None => plain as f64,
        })
    }

    /// The least and the most.
    fn range(&self, value: impl Fn(&Run) -> f64) -> (f64, f64) {
        let values = || self.runs.iter().map(&value);
        let low = values().fold(f64::INFINITY, f64::min);
        (low, values().fold(f64::NEG_INFINITY, f64::max))
    }
}

/// The columns of the runs of a method, beside those of plain training. All numbers are medians over the seeds.
pub fn row(runs: &Runs, plain: &Runs) -> Row {
    let method = &runs.method;
    let real = runs.counts(|counts| counts.real, runs.steps);
    let (seconds, loss) = (runs.over(|run| run.seconds), runs.over(|run| run.loss));
    let (fast, slow) = runs.range(|run| run.seconds);
    let (low, high) = runs.range(|run| run.loss);
    let confidence =
        || runs.over(|run| run.hybrid.as_ref().map_or(0.0, |hybrid| hybrid.confidence));
    let to = |n: usize| {
        let seconds = runs.over(|run| run.to[n].unwrap_or(f64::INFINITY));
        Some(seconds).filter(|seconds| seconds.is_finite())
    };
    Row::new()
        .wide("rung", 7, runs.rung)
        .wide("predictor", 22, method.name())
        .hidden("without", method.without)
        .hidden("settings", &method.settings)
        .hidden("steps", runs.steps)
        .number("real", 0, real)
        .number("predicted", 0, runs.counts(|counts| counts.predicted, 0))
        .number("fallbacks", 0, runs.counts(|counts| counts.fallbacks, 0))
        .number("back", 0, runs.counts(|counts| counts.taken_back, 0))
        .percent("saved", 1.0 - real / runs.steps as f64)
        .number("sure", 2, method.settings.as_ref().map(|_| confidence()))
        .number("seconds", 2, seconds)
        .number("fastest", 2, fast)
        .number("slowest", 2, slow)
        .number("speed", 2, plain.over(|run| run.seconds) / seconds)
        .number("loss", 4, loss)
        .number("least", 4, low)
        .number("most", 4, high)
        .number("of_plain", 3, loss / plain.over(|run| run.loss))
        .number("to_50", 2, to(0))
        .number("to_75", 2, to(1))
        .number("to_100", 2, to(2))
        .hidden("runs", &runs.runs)
}

/// What the columns mean.
pub const COLUMNS: &str = "\
Medians over the seeds. predicted: steps that predictions replaced; fallbacks: predictions that the continued last update
made in the predictor's place; back: predicted steps that were taken back; saved: backward passes; sure: the confidence at
the end, which a prediction needs --hybrid's least of; fastest, slowest: the range of the seconds, and least, most of the
loss; speed: of the whole run, beside plain training; to 50, 75, 100: seconds to the validation loss that plain training
has at that part of its run, - where it is not reached.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_of_runs_that_did_not_arrive_is_infinite() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        let few = [1.0, f64::INFINITY, f64::INFINITY];
        assert!(median(few.into_iter()).is_infinite());
    }
}
