//! Repeated timings: their median and spread, and whether they are steady.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use burn::tensor::Device;
use serde::Serialize;

/// The 20th percentile of a steady measurement is no less than this part of its median.
const STEADY: f64 = 0.7;
/// Attempts at a steady measurement before it is refused.
const ATTEMPTS: usize = 3;

/// Median and spread of repeated timings.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Timing {
    /// Median, in seconds.
    pub median: f64,
    /// 20th percentile, in seconds.
    pub low: f64,
    /// 80th percentile, in seconds.
    pub high: f64,
    /// The number of timings.
    pub samples: usize,
}

impl Timing {
    /// The median and spread of a list of seconds.
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

    /// The same of one of `count` equal parts.
    pub fn divided(self, count: usize) -> Self {
        let part = |seconds: f64| seconds / count as f64;
        Self {
            median: part(self.median),
            low: part(self.low),
            high: part(self.high),
            ..self
        }
    }

    /// Half the distance between the 20th and the 80th percentile, as a part of the median.
    pub fn spread(&self) -> f64 {
        (self.high - self.low) / 2.0 / self.median
    }

    /// Whether the fast timings are near the median. If they are not, some calls did less work than others, or the machine was
    /// disturbed, and the median is meaningless.
    pub fn is_steady(&self) -> bool {
        self.low >= STEADY * self.median
    }
}

/// Seconds that a call takes.
pub fn wall(call: impl FnOnce()) -> f64 {
    let start = Instant::now();
    call();
    start.elapsed().as_secs_f64()
}

/// Seconds of one of `calls` calls of an operation on tensors, until the device has finished; and the host's part of them. All
/// results stay alive until then: Burn skips operations whose results are dropped.
pub fn in_a_row<T>(device: &Device, calls: usize, mut call: impl FnMut() -> T) -> [f64; 2] {
    let start = Instant::now();
    let kept: Vec<T> = (0..calls).map(|_| call()).collect();
    let host = start.elapsed().as_secs_f64();
    device.sync().expect("a device that works");
    let seconds = [start.elapsed().as_secs_f64(), host];
    drop(kept);
    seconds.map(|seconds| seconds / calls as f64)
}

/// Times `once` after a warm-up, at least 7 times and for at least `budget`; unsteady timings are taken again.
pub fn repeat(budget: Duration, mut once: impl FnMut() -> f64) -> Timing {
    once();
    once();
    let timing = steady(|| {
        let start = Instant::now();
        let mut seconds = Vec::new();
        while seconds.len() < 7 || (start.elapsed() < budget && seconds.len() < 2000) {
            seconds.push(once());
        }
        Ok::<_, Infallible>(Timing::of(seconds))
    });
    timing.unwrap_or_else(|never| match never {})
}

/// The first steady one of some attempts, or the last.
pub fn steady<E>(mut measure: impl FnMut() -> Result<Timing, E>) -> Result<Timing, E> {
    let mut timing = measure()?;
    for _ in 1..ATTEMPTS {
        if timing.is_steady() {
            break;
        }
        timing = measure()?;
    }
    Ok(timing)
}

/// Times two programs in turns, so that a machine that slows down slows both: at least 7 turns, more while `budget`
/// lasts; unsteady timings are taken again.
pub fn in_turns(
    budget: Duration,
    mut once: impl FnMut() -> (f64, Option<f64>),
) -> (Timing, Option<Timing>) {
    once();
    let mut measure = || {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        let start = Instant::now();
        // A turn of many seconds is not repeated seven times.
        let few = |count: usize| count < 3 || (count < 7 && start.elapsed() < 4 * budget);
        while few(ours.len()) || (start.elapsed() < budget && ours.len() < 1000) {
            let (own, peer) = once();
            ours.push(own);
            theirs.extend(peer);
        }
        let peer = (!theirs.is_empty()).then(|| Timing::of(theirs));
        (Timing::of(ours), peer)
    };
    let mut timings = measure();
    for _ in 1..ATTEMPTS {
        if timings.0.is_steady() && timings.1.is_none_or(|peer| peer.is_steady()) {
            break;
        }
        timings = measure();
    }
    timings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_did_nothing_make_a_measurement_unsteady() {
        let mut timings = vec![1.0; 7];
        assert!(Timing::of(timings.clone()).is_steady());
        timings.extend([0.06; 3]);
        assert!(!Timing::of(timings).is_steady());
    }
}
