//! The lines of `metrics.jsonl`.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::hybrid::Status;

/// The data that a report is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Split {
    /// Batches since the report before, each seen before its own update.
    Train,
    /// The whole validation set, after this step's update.
    Validation,
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Train => "train",
            Self::Validation => "validation",
        })
    }
}

/// One line of `metrics.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Steps done.
    pub step: u64,
    /// The data that the loss is over.
    pub split: Split,
    /// Mean cross-entropy in nats a scored token.
    pub loss: f64,
    /// Part of the scored tokens that were right, 0 to 1, for tasks that have right answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// Passes over the training data so far, for data that have an end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<f64>,
    /// Steps of the run that were skipped for gradients that overflowed, where the loss is scaled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<u64>,
    /// Norm of the last step's gradients before clipping, where it is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradient: Option<f64>,
    /// Norms of the gradients of groups of parameters, by the path of their module, where they are asked for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub gradients: BTreeMap<String, f64>,
    /// The state of hybrid training, in reports of training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hybrid: Option<Status>,
    /// Tokens read a second: in training since the report before, or in this evaluation.
    pub tokens_per_s: f64,
    /// Learning rate of the last step.
    pub lr: f64,
    /// Time that the run has taken, over all its sessions.
    pub seconds: f64,
}

impl Report {
    /// The loss in bits a token.
    pub fn bits(&self) -> f64 {
        self.loss / std::f64::consts::LN_2
    }
}
