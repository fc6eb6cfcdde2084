//! The table of `riverrun verify`.

use std::io::{Write, stdout};

use riverrun_kernels::check::Comparison;

use crate::failure::Failure;

/// A row: the worst of some cases.
#[derive(Default)]
pub(super) struct Row {
    share: f64,
    cases: usize,
    error: f64,
    allowed: f64,
    tensor: String,
    wrong: usize,
    unrepeatable: bool,
}

impl Row {
    /// Adds a case: the verdicts on its tensors, and whether a second run gave the same bits.
    pub fn case(&mut self, verdicts: &[Comparison], repeats: bool) {
        self.unrepeatable |= !repeats;
        self.cases += 1;
        self.wrong += usize::from(verdicts.iter().any(|verdict| !verdict.passes()));
        for verdict in verdicts {
            let share = share_of(verdict);
            // Not `share > self.share` alone, which is false for NaN.
            if self.tensor.is_empty() || share.is_nan() || share > self.share {
                self.share = share;
                self.error = verdict.error;
                self.allowed = verdict.allowed;
                self.tensor.clone_from(&verdict.tensor);
            }
        }
    }
}

impl Row {
    /// Whether no case has been added.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub fn is_empty(&self) -> bool {
        self.cases == 0
    }
}

/// The error as a part of what is allowed; 0 of 0 is 0.
fn share_of(verdict: &Comparison) -> f64 {
    if verdict.error == 0.0 {
        0.0
    } else {
        verdict.error / verdict.allowed
    }
}

/// Prints rows as they come, and counts.
pub(super) struct Table {
    checked: usize,
    wrong: usize,
    skipped: usize,
}

impl Table {
    pub fn new() -> Result<Self, Failure> {
        writeln!(
            stdout(),
            "{:<10} {:<18} {:<5} {:<8} {:>5}  {:<10} {:>9} {:>9}  verdict",
            "device",
            "what",
            "type",
            "routine",
            "cases",
            "worst in",
            "error",
            "allowed"
        )?;
        Ok(Self {
            checked: 0,
            wrong: 0,
            skipped: 0,
        })
    }

    /// `what`: the operation's form, such as its gate or cell.
    pub fn row(
        &mut self,
        device: &str,
        what: &str,
        dtype: &str,
        routine: &str,
        row: Row,
    ) -> Result<(), Failure> {
        let right = row.wrong == 0 && !row.unrepeatable;
        self.checked += 1;
        self.wrong += usize::from(!right);
        let verdict = match (row.wrong, row.unrepeatable) {
            (0, false) => "right".to_string(),
            (0, true) => "WRONG: two runs differ".to_string(),
            (wrong, _) => format!("WRONG in {wrong} of {} cases", row.cases),
        };
        writeln!(
            stdout(),
            "{device:<10} {what:<18} {dtype:<5} {routine:<8} {:>5}  {:<10} {:>9.2e} {:>9.2e}  {verdict}",
            row.cases,
            row.tensor,
            row.error,
            row.allowed
        )?;
        Ok(())
    }

    /// Says why something is not checked.
    #[cfg_attr(not(feature = "gpu"), allow(dead_code))]
    pub fn skip(&mut self, device: &str, what: &str, reason: &str) -> Result<(), Failure> {
        self.skipped += 1;
        writeln!(stdout(), "{device:<10} {what}: skipped, {reason}")?;
        Ok(())
    }

    pub fn end(self) -> Result<(), Failure> {
        let Self {
            checked,
            wrong,
            skipped,
        } = self;
        writeln!(
            stdout(),
            "{} right, {wrong} wrong, {skipped} skipped",
            checked - wrong
        )?;
        if wrong > 0 {
            return Err(Failure::Bug(format!(
                "{wrong} of {checked} kernels are wrong on this machine"
            )));
        }
        Ok(())
    }
}
