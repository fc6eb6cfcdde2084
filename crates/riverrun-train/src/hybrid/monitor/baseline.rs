//! The usual range of losses and gradient norms.

use serde::{Deserialize, Serialize};

/// Observations from which the baselines start.
const BASELINE: u64 = 50;
/// Part of a baseline that an observation leaves in place after that.
const KEEP: f64 = 0.99;

/// Running mean and deviation: exact over the first [`BASELINE`] observations, exponential after them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    count: u64,
    pub mean: f64,
    pub variance: f64,
}

impl Baseline {
    pub fn add(&mut self, value: f64) {
        self.count += 1;
        let keep = if self.count <= BASELINE {
            1.0 - 1.0 / self.count as f64
        } else {
            KEEP
        };
        let off = value - self.mean;
        self.mean += (1.0 - keep) * off;
        self.variance = keep * (self.variance + (1.0 - keep) * off * off);
    }

    /// Whether there have been enough to compare with.
    pub fn ready(&self) -> bool {
        self.count >= BASELINE
    }
}
