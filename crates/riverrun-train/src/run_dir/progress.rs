//! The progress of a run.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{read_json, write_json};
use crate::{Error, ScaleRecord};

const NAME: &str = "progress.json";

/// The progress of a run: with the weights and moments, everything that the next step depends on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// Steps done.
    pub step: u64,
    /// Steps that AdamW has counted.
    pub updates: usize,
    /// Time taken so far.
    pub seconds: f64,
    /// Sum of the training losses since the last report, and of how many steps.
    pub pending: (f32, u64),
    /// The loss scale, where there is one.
    #[serde(default)]
    pub scale: Option<ScaleRecord>,
    /// The lowest validation loss so far.
    pub best: Option<f64>,
    /// Evaluations since that one.
    #[serde(default)]
    pub stale: u64,
    /// The ranks that computed it.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub ranks: usize,
    /// Those of a group that divides sequences along time.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub along_time: usize,
}

fn one() -> usize {
    1
}

fn is_one(ranks: &usize) -> bool {
    *ranks == 1
}

impl Progress {
    /// The progress of a run that has not begun.
    pub fn none() -> Self {
        Self {
            step: 0,
            updates: 0,
            seconds: 0.0,
            pending: (0.0, 0),
            scale: None,
            best: None,
            stale: 0,
            ranks: 1,
            along_time: 1,
        }
    }

    /// A reason why the numbers cannot be those of a run.
    fn contradiction(&self) -> Option<&'static str> {
        let Self {
            step,
            updates,
            seconds,
            pending: (loss, steps),
            best,
            ..
        } = *self;
        let checks = [
            (updates as u64 <= step, "more updates than steps"),
            (steps <= step, "a loss over more steps than were done"),
            (loss.is_finite(), "a loss that is not finite"),
            (seconds.is_finite() && seconds >= 0.0, "a time that is none"),
            (
                best.is_none_or(f64::is_finite),
                "a best loss that is not finite",
            ),
        ];
        checks
            .iter()
            .find(|(holds, _)| !holds)
            .map(|(_, what)| *what)
    }

    /// Reads the progress of a checkpoint.
    pub fn read(checkpoint: &Path) -> Result<Self, Error> {
        let path = checkpoint.join(NAME);
        let progress: Self = read_json(&path)?;
        match progress.contradiction() {
            None => Ok(progress),
            Some(reason) => Err(Error::damaged(path, reason)),
        }
    }

    /// Writes the progress into a checkpoint.
    pub fn write(&self, checkpoint: &Path) -> Result<(), Error> {
        write_json(&checkpoint.join(NAME), self)
    }
}
