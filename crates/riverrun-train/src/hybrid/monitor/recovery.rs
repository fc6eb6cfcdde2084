//! Answers to divergence.

use serde::{Deserialize, Serialize};

/// The answer to a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recovery {
    /// Go on.
    Continue,
    /// Halve the length of predictions for a while.
    ReducePredictions,
    /// Train two full phases before the next prediction.
    ForceFull,
    /// Restore the weights from before the last prediction, and train.
    RollBack,
    /// As that, and ask for more confidence from now on.
    RaiseConfidence,
    /// As that, and forget what the predictor has learned.
    ResetPredictor,
    /// Restore the weights from before this window, and leave its batches out: nothing was predicted.
    SkipBatch,
    /// Stop the run with its last good checkpoint.
    Abort,
}

impl Recovery {
    /// Whether weights and moments are restored.
    pub fn restores(self) -> bool {
        matches!(
            self,
            Self::RollBack | Self::RaiseConfidence | Self::ResetPredictor | Self::SkipBatch
        )
    }
}
