//! The ways to run the cells on a CPU.

use pulp::Simd;

use super::split::{Plan, Split};
use crate::Error;
use crate::cell::Problem;
use crate::simd::level::Level;
use crate::simd::real::Real;
use crate::simd::vector::lanes;

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

    pub(super) fn plan<S: Simd, R: Real>(&self, problem: &Problem) -> Plan {
        let work = problem.gate_width() * problem.hidden;
        let sizes = (problem.batch, problem.steps, problem.hidden);
        Plan::new(self.split, self.threads(), sizes, lanes::<S, R>(), work)
    }
}
