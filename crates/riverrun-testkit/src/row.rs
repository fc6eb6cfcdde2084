//! Rows of a report: the worst of some cases.

use crate::{Comparison, Failure, Verdict};

/// The worst of some cases.
#[derive(Debug, Clone, Default)]
pub struct Row {
    /// Cases that were checked.
    pub cases: usize,
    /// The error of the worst number: the one with the largest error relative to its allowed error.
    pub error: f64,
    /// The allowed error of that number.
    pub allowed: f64,
    /// The tensor of that number.
    pub tensor: String,
    /// Cases with a wrong tensor.
    pub wrong: usize,
    /// Whether two runs of a case differ.
    pub unrepeatable: bool,
}

impl Row {
    /// Adds a case.
    pub fn add(&mut self, verdict: &Verdict) {
        self.case(&verdict.comparisons, verdict.repeats);
    }

    /// Adds a case: the comparisons of its tensors, and whether a second run gave the same bits.
    pub fn case(&mut self, comparisons: &[Comparison], repeats: bool) {
        self.unrepeatable |= !repeats;
        self.cases += 1;
        self.wrong += usize::from(comparisons.iter().any(|one| !one.passes()));
        let mut worst = share(self.error, self.allowed);
        for one in comparisons {
            let share = share(one.error, one.allowed);
            // Not a comparison of the shares alone, which is false for NaN.
            if self.tensor.is_empty() || share.is_nan() || share > worst {
                worst = share;
                self.error = one.error;
                self.allowed = one.allowed;
                self.tensor.clone_from(&one.tensor);
            }
        }
    }

    /// Whether no case has been added.
    pub fn is_empty(&self) -> bool {
        self.cases == 0
    }

    /// Whether cases were checked, and all of them are right and repeatable.
    pub fn passes(&self) -> bool {
        self.cases > 0 && self.wrong == 0 && !self.unrepeatable
    }
}

/// The error relative to the allowed one; 0 of 0 is 0.
fn share(error: f64, allowed: f64) -> f64 {
    match error {
        0.0 => 0.0,
        error => error / allowed,
    }
}

/// Where the rows of a check go.
pub trait Report {
    /// Adds a row. `what` is the operation's form, such as its gate or cell.
    ///
    /// # Errors
    /// The errors of the report.
    fn row(
        &mut self,
        device: &str,
        what: &str,
        dtype: &str,
        routine: &str,
        row: Row,
    ) -> Result<(), Failure>;

    /// Adds what cannot be checked here, with the reason.
    ///
    /// # Errors
    /// The errors of the report.
    fn skip(&mut self, device: &str, what: &str, reason: &str) -> Result<(), Failure>;

    /// Counts a check without a result as wrong.
    ///
    /// # Errors
    /// The errors of the report.
    fn fail(&mut self, device: &str, what: &str, reason: &str) -> Result<(), Failure>;
}
