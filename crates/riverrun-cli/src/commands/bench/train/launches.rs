//! The launches of a step, by kernel.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cubecl::config::{TypeNameFormatLevel, type_name_format};
use cubecl::future::block_on;
use cubecl::logging::{
    Duration, LaunchObservation, LaunchObserver, ProfileDuration, TimingMethod, TimingRequest,
};
use serde::Serialize;

use crate::commands::bench::row::Row;
use crate::failure::Failure;

/// Steps over which kernels are timed.
const TIMED: usize = 3;

/// The launches of a step.
#[derive(Debug, Serialize)]
pub struct Launches {
    /// Kernels of CubeCL and products of cuBLASLt.
    pub per_step: usize,
    /// The number of them that are matmuls of cuBLASLt.
    pub vendor: usize,
    /// By name, the slowest first; without times, the most launched first.
    pub kernels: Vec<Kernel>,
}

/// The launches of one kernel.
#[derive(Debug, Clone, Serialize)]
pub struct Kernel {
    name: String,
    per_step: f64,
    /// Milliseconds a step, all launches together.
    ms: Option<f64>,
}

impl Launches {
    /// The columns of a row: their number, and below the row the first `most` kernels.
    pub fn columns(&self, row: Row, most: usize) -> Row {
        let mut text = String::new();
        if most > 0 && self.vendor > 0 {
            let _ = writeln!(text, "  {:>7} x  cuBLASLt (not timed)", self.vendor);
        }
        for kernel in self.kernels.iter().take(most) {
            let (name, ms) = (&kernel.name, kernel.ms.map(|ms| format!("{ms:.3}")));
            let ms = ms.unwrap_or_else(|| "?".into());
            let _ = writeln!(text, "  {:>7.1} x  {ms:>8} ms  {name}", kernel.per_step);
        }
        let row = row.count("launches_per_step", self.per_step);
        row.hidden("launches", self).below(text)
    }
}

/// Runs `step` and counts; `timed`, some times more with the device's clock around every launch.
pub fn observe(
    timed: bool,
    sync: impl Fn() -> Result<(), Failure>,
    mut step: impl FnMut() -> Result<(), Failure>,
) -> Result<Launches, Failure> {
    let count = |steps: usize,
                 times: bool,
                 step: &mut dyn FnMut() -> Result<(), Failure>|
     -> Result<_, Failure> {
        let seen = Arc::new(Observed {
            times,
            kernels: Mutex::default(),
        });
        let watching = LaunchObservation::new(seen.clone());
        let before = vendor_products();
        for _ in 0..steps {
            step()?;
            sync()?;
        }
        drop(watching);
        Ok((seen.take(steps), vendor_products() - before))
    };
    let (mut kernels, vendor) = count(1, false, &mut step)?;
    let launched: f64 = kernels.iter().map(|kernel| kernel.per_step).sum();
    if timed {
        kernels = count(TIMED, true, &mut step)?.0;
    }
    kernels.sort_by(|a, b| {
        let key = |kernel: &Kernel| (kernel.ms.unwrap_or(0.0), kernel.per_step);
        key(b).partial_cmp(&key(a)).expect("numbers")
    });
    Ok(Launches {
        per_step: launched as usize + vendor,
        vendor,
        kernels,
    })
}

/// The number of products computed by cuBLASLt.
fn vendor_products() -> usize {
    #[cfg(feature = "cuda")]
    return riverrun_kernels::gemm::vendor::products_launched();
    #[cfg(not(feature = "cuda"))]
    0
}

/// The launches observed so far.
struct Observed {
    times: bool,
    kernels: Mutex<HashMap<&'static str, (usize, Vec<Time>)>>,
}

enum Time {
    Read(Duration),
    Unread(ProfileDuration),
}

impl Observed {
    fn kernels(&self) -> MutexGuard<'_, HashMap<&'static str, (usize, Vec<Time>)>> {
        self.kernels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, steps: usize) -> Vec<Kernel> {
        let mut named: HashMap<String, (usize, f64)> = HashMap::new();
        for (name, (count, times)) in self.kernels().drain() {
            let seconds: f64 = times
                .into_iter()
                .filter_map(|time| match time {
                    Time::Read(duration) => Some(duration),
                    Time::Unread(profile) => {
                        block_on(profile.resolve()).map(|ticks| ticks.duration())
                    }
                })
                .map(|duration| duration.as_secs_f64())
                .sum();
            let name = type_name_format(name, TypeNameFormatLevel::Balanced);
            let entry = named.entry(name).or_default();
            entry.0 += count;
            entry.1 += seconds;
        }
        let per_step = |x: f64| x / steps as f64;
        named
            .into_iter()
            .map(|(name, (count, seconds))| Kernel {
                name,
                per_step: per_step(count as f64),
                ms: self.times.then(|| per_step(seconds * 1e3)),
            })
            .collect()
    }
}

impl LaunchObserver for Observed {
    fn launched(&self, kernel: &'static str) {
        self.kernels().entry(kernel).or_default().0 += 1;
    }

    fn timing(&self) -> TimingRequest {
        match self.times {
            true => TimingRequest::Deferred,
            false => TimingRequest::None,
        }
    }

    fn profiled(&self, kernel: &'static str, profile: ProfileDuration) {
        let mut kernels = self.kernels();
        kernels
            .entry(kernel)
            .or_default()
            .1
            .push(Time::Unread(profile));
    }

    fn timed(&self, kernel: &'static str, duration: Duration, _method: TimingMethod) {
        let mut kernels = self.kernels();
        kernels
            .entry(kernel)
            .or_default()
            .1
            .push(Time::Read(duration));
    }
}
