//! Repeated timings and what is said of them.

use std::time::{Duration, Instant};

use serde::Serialize;

/// The middle of repeated timings, and how far apart they lie.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Timing {
    /// Median, seconds.
    pub median: f64,
    /// Fifth of the timings that are at most this, seconds.
    pub low: f64,
    /// Fifth of the timings that are at least this, seconds.
    pub high: f64,
    /// Timings taken.
    pub samples: usize,
}

impl Timing {
    /// Of a list of seconds.
    pub fn of(mut seconds: Vec<f64>) -> Self {
        seconds.sort_by(f64::total_cmp);
        let at = |part: f64| seconds[((seconds.len() - 1) as f64 * part).round() as usize];
        Self {
            median: at(0.5),
            low: at(0.2),
            high: at(0.8),
            samples: seconds.len(),
        }
    }

    /// Half the spread between the fifths, as a part of the median.
    pub fn spread(&self) -> f64 {
        (self.high - self.low) / 2.0 / self.median
    }
}

/// Times `once` after a warm-up, at least 7 times and for at least `budget`.
pub fn repeat(budget: Duration, mut once: impl FnMut() -> f64) -> Timing {
    once();
    once();
    let start = Instant::now();
    let mut seconds = Vec::new();
    while seconds.len() < 7 || start.elapsed() < budget {
        seconds.push(once());
        if seconds.len() >= 2000 {
            break;
        }
    }
    Timing::of(seconds)
}
