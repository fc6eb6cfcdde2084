//! The choice among the algorithms that cuBLASLt's heuristics give for a problem.
//!
//! The heuristics order them by an estimate, and the first is not always the fastest. A caller that has measured can choose
//! another one; nothing is measured implicitly, so that two runs of a program take the same algorithms and give the same bits.

use std::sync::PoisonError;

use super::{Problem, Vendor, choose};

impl Vendor {
    /// How many algorithms the heuristics give for a problem with aligned buffers, at most `most`.
    pub fn algorithms(&self, problem: &Problem, most: usize) -> usize {
        let exists = |nth: &usize| {
            let found = self
                .device
                .ask(|| choose(&self.library, problem, 256, *nth).map(|_| ()));
            found.is_ok()
        };
        (0..most).take_while(exists).count()
    }

    /// Chooses the `nth` of the heuristics' algorithms for a problem from now on; 0 is the heuristics' own choice.
    ///
    /// # Errors
    /// If there are not that many.
    pub fn prefer(&self, problem: &Problem, nth: usize) -> Result<(), String> {
        self.device
            .ask(|| choose(&self.library, problem, 256, nth).map(|_| ()))?;
        let mut preferred = self
            .preferred
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        preferred.insert(*problem, nth);
        drop(preferred);
        let mut plans = self.plans.write().unwrap_or_else(PoisonError::into_inner);
        plans.retain(|(known, _), _| known != problem);
        Ok(())
    }

    /// The number of the algorithm that a problem takes.
    pub(super) fn preference(&self, problem: &Problem) -> usize {
        let preferred = self
            .preferred
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        preferred.get(problem).copied().unwrap_or(0)
    }
}
