//! The ways to run the cells on a CPU.

use super::lanes::Lanes;
use super::team::{Plan, Split};
use crate::Error;
use crate::cell::Problem;

/// Vector instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Level {
    /// AVX-512 F and VL with AVX2 and FMA.
    Avx512,
    /// AVX2 with FMA.
    Avx2,
    /// What the target has without asking.
    Portable,
}

impl Level {
    /// The levels of this machine, best first.
    pub fn available() -> &'static [Level] {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            if avx2 && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl") {
                return &[Level::Avx512, Level::Avx2, Level::Portable];
            }
            if avx2 {
                return &[Level::Avx2, Level::Portable];
            }
        }
        &[Level::Portable]
    }
}

/// How to run; every field may be left to the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Routine {
    /// The division among threads.
    pub split: Split,
    /// Threads; those of the current rayon pool if absent.
    pub threads: Option<usize>,
    /// Instructions; the best of the machine if absent.
    pub level: Option<Level>,
}

impl Routine {
    pub(super) fn level(&self) -> Result<Level, Error> {
        let available = Level::available();
        match self.level {
            None => Ok(available[0]),
            Some(level) if available.contains(&level) => Ok(level),
            Some(level) => Err(Error::Routine {
                routine: "cell",
                reason: format!("this machine has {available:?}, not {level:?}"),
            }),
        }
    }

    pub(super) fn threads(&self) -> usize {
        self.threads
            .unwrap_or_else(rayon::current_num_threads)
            .max(1)
    }

    pub(super) fn plan<L: Lanes>(&self, problem: &Problem) -> Plan {
        let work = problem.gate_width() * problem.hidden;
        let sizes = (problem.batch, problem.steps, problem.hidden);
        Plan::new(self.split, self.threads(), sizes, L::WIDTH, work)
    }
}
