//! A run, watched.

use std::time::Instant;

use riverrun_train::{Observer, Report, Split};

/// Parts of a plain run whose losses are the targets.
pub const PARTS: [u64; 3] = [50, 75, 100];

/// Evaluations, with the time that training has taken until then.
#[derive(Debug, Default)]
pub struct Watch {
    start: Option<Instant>,
    /// Time that was not training.
    excluded: f64,
    /// When training last paused.
    paused: Option<Instant>,
    pub evaluations: Vec<Evaluation>,
}

/// One evaluation.
#[derive(Debug)]
pub struct Evaluation {
    pub step: u64,
    /// Time of training until then.
    pub seconds: f64,
    pub loss: f64,
    pub accuracy: Option<f64>,
}

impl Watch {
    /// The validation losses at the parts of a plain run.
    pub fn targets(&self, steps: u64) -> [f64; 3] {
        PARTS.map(|part| {
            let until = |evaluation: &&Evaluation| evaluation.step <= steps * part / 100;
            let last = self.evaluations.iter().take_while(until).last();
            last.map_or(f64::NEG_INFINITY, |evaluation| evaluation.loss)
        })
    }

    /// Seconds of training to a validation loss; none where it is not reached.
    pub fn time_to(&self, target: f64) -> Option<f64> {
        let reached = |evaluation: &&Evaluation| evaluation.loss <= target;
        let first = self.evaluations.iter().find(reached)?;
        Some(first.seconds)
    }
}

impl Observer for Watch {
    fn begin(&mut self, _: &riverrun_train::Plan) {
        self.start = Some(Instant::now());
    }

    fn report(&mut self, report: &Report) {
        if report.split == Split::Train {
            self.paused = Some(Instant::now());
        } else if let (Some(start), Some(paused)) = (self.start, self.paused) {
            self.evaluations.push(Evaluation {
                step: report.step,
                seconds: (paused - start).as_secs_f64() - self.excluded,
                loss: report.loss,
                accuracy: report.accuracy,
            });
        }
    }

    fn saved(&mut self, _: u64) {
        if let Some(paused) = self.paused {
            self.excluded += paused.elapsed().as_secs_f64();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_the_losses_at_parts_of_a_run() {
        let evaluation = |(n, loss): (u64, f64)| Evaluation {
            step: 20 * n,
            seconds: n as f64,
            loss,
            accuracy: None,
        };
        let losses = [(1, 0.9), (2, 0.8), (3, 0.7), (4, 0.4), (5, 0.5)];
        let watch = Watch {
            evaluations: losses.map(evaluation).into(),
            ..Watch::default()
        };
        assert_eq!(watch.targets(100), [0.8, 0.7, 0.5]);
        assert_eq!(watch.time_to(0.7), Some(3.0));
        assert_eq!(watch.time_to(0.5), Some(4.0));
        assert_eq!(watch.time_to(0.1), None);
    }
}
