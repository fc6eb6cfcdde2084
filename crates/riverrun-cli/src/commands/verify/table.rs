//! The table of `riverrun verify`.

use std::collections::BTreeSet;
use std::io::{Write, stdout};

use riverrun_testkit::{Part, Report as Rows, Row};
use serde::{Deserialize, Serialize};

use crate::args::VerifyArgs;
use crate::failure::Failure;
use crate::origin::Origin;
use crate::started;

/// A line of the table; a process reports its part as such lines, in JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(super) enum Line {
    /// Some cases that were checked.
    Row {
        device: String,
        what: String,
        dtype: String,
        routine: String,
        cases: usize,
        tensor: String,
        /// With `null` for NaN and infinity.
        error: Option<f64>,
        allowed: Option<f64>,
        wrong: usize,
        unrepeatable: bool,
    },
    /// Something that cannot be checked on this device.
    Skip {
        device: String,
        what: String,
        reason: String,
    },
    /// A part that ended without a result.
    Failure {
        device: String,
        what: String,
        reason: String,
    },
}

impl Line {
    /// The line of a part that ended without a result.
    pub fn failed(part: &Part<'_>, reason: String) -> Self {
        Self::Failure {
            device: part.device().into(),
            what: part.name(),
            reason,
        }
    }

    /// Adds the line to another report.
    pub fn report(self, to: &mut dyn Rows) -> Result<(), riverrun_testkit::Failure> {
        match self {
            Self::Row {
                device,
                what,
                dtype,
                routine,
                cases,
                tensor,
                error,
                allowed,
                wrong,
                unrepeatable,
            } => {
                let row = Row {
                    cases,
                    error: error.unwrap_or(f64::NAN),
                    allowed: allowed.unwrap_or(f64::NAN),
                    tensor,
                    wrong,
                    unrepeatable,
                };
                to.row(&device, &what, &dtype, &routine, row)
            }
            Self::Skip {
                device,
                what,
                reason,
            } => to.skip(&device, &what, &reason),
            Self::Failure {
                device,
                what,
                reason,
            } => to.fail(&device, &what, &reason),
        }
    }

    fn is_wrong(&self) -> bool {
        match self {
            Self::Row {
                wrong,
                unrepeatable,
                ..
            } => *wrong > 0 || *unrepeatable,
            Self::Failure { .. } => true,
            Self::Skip { .. } => false,
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Row {
                device,
                what,
                dtype,
                routine,
                cases,
                tensor,
                error,
                allowed,
                wrong,
                unrepeatable,
            } => {
                let verdict = match (wrong, unrepeatable) {
                    (0, false) => "right".to_string(),
                    (0, true) => "WRONG: two runs differ".to_string(),
                    (wrong, _) => format!("WRONG in {wrong} of {cases} cases"),
                };
                let number = |x: &Option<f64>| x.map_or("NaN".into(), |x| format!("{x:.2e}"));
                let (error, allowed) = (number(error), number(allowed));
                format!(
                    "{device:<10} {what:<18} {dtype:<5} {routine:<12} {cases:>5}  {tensor:<10} {error:>9} {allowed:>9}  {verdict}"
                )
            }
            Self::Skip {
                device,
                what,
                reason,
            } => format!("{device:<10} {what}: skipped, {reason}"),
            Self::Failure {
                device,
                what,
                reason,
            } => format!("{device:<10} {what}: FAILED, {reason}"),
        }
    }
}

/// The file of `--json`.
#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    origin: Origin,
    seconds: f64,
    left_out: &'a [&'a str],
    lines: &'a [Line],
}

/// Prints lines as they come, and counts.
pub(super) struct Table {
    json_rows: bool,
    lines: Vec<Line>,
    /// Why a line could not be printed.
    broken: Option<Failure>,
}

impl Table {
    /// `json_rows`: lines of JSON in place of the table.
    pub fn new(json_rows: bool) -> Result<Self, Failure> {
        if !json_rows {
            writeln!(
                stdout(),
                "{:<10} {:<18} {:<5} {:<12} {:>5}  {:<10} {:>9} {:>9}  verdict",
                "device",
                "what",
                "type",
                "routine",
                "cases",
                "worst in",
                "error",
                "allowed"
            )?;
        }
        Ok(Self {
            json_rows,
            lines: Vec::new(),
            broken: None,
        })
    }

    /// Runs a check of one part, which adds its rows.
    pub fn check(&mut self, part: &Part<'_>) -> Result<(), Failure> {
        let found = (part.operation.check)(part, self);
        match self.broken.take() {
            Some(failure) => Err(failure),
            None => found.map_err(|failure| Failure::Bug(failure.0)),
        }
    }

    /// Adds a line of a check, whose failures have no kind.
    fn add(&mut self, line: Line) -> Result<(), riverrun_testkit::Failure> {
        self.line(line).map_err(|failure| {
            let reason = failure.to_string();
            self.broken = Some(failure);
            riverrun_testkit::Failure(reason)
        })
    }

    /// Adds a line that was made elsewhere. A skip that is in the table already is not repeated.
    pub fn line(&mut self, line: Line) -> Result<(), Failure> {
        if matches!(line, Line::Skip { .. }) && self.lines.contains(&line) {
            return Ok(());
        }
        let text = match self.json_rows {
            true => serde_json::to_string(&line).map_err(|e| Failure::Bug(e.to_string()))?,
            false => line.text(),
        };
        writeln!(stdout(), "{text}")?;
        self.lines.push(line);
        Ok(())
    }

    /// Prints the counts and the skipped cases; an error if anything is wrong or nothing was checked.
    pub fn end(self, args: &VerifyArgs, left_out: &[&str]) -> Result<(), Failure> {
        if self.json_rows {
            return Ok(());
        }
        let skipped = |line: &&Line| matches!(line, Line::Skip { .. });
        let skipped = self.lines.iter().filter(skipped).count();
        let wrong = self.lines.iter().filter(|line| line.is_wrong()).count();
        let checked = self.lines.len() - skipped;
        writeln!(
            stdout(),
            "{} right, {wrong} wrong, {skipped} skipped, in {:.1} s",
            checked - wrong,
            started().as_secs_f64()
        )?;
        if !left_out.is_empty() && checked > 0 {
            let left_out = left_out.join("; ");
            writeln!(stdout(), "not checked without --long: {left_out}")?;
        }
        if let Some(path) = &args.json {
            let devices: BTreeSet<&str> = self.lines.iter().map(Line::device).collect();
            let devices: Vec<&str> = devices.into_iter().collect();
            let names: Vec<String> = riverrun::device::list()
                .into_iter()
                .filter(|info| devices.contains(&info.spec.as_str()))
                .map(|info| info.name())
                .collect();
            let report = Report {
                origin: Origin::new(&devices.join(", "), &names.join(", ")),
                seconds: started().as_secs_f64(),
                left_out,
                lines: &self.lines,
            };
            crate::commands::write_json(path, &report)?;
        }
        match (checked, wrong) {
            (0, _) => Err(Failure::Bug("nothing was checked".into())),
            (_, 0) => Ok(()),
            _ => Err(Failure::Bug(format!(
                "{wrong} of {checked} checks failed on this machine"
            ))),
        }
    }
}

impl Rows for Table {
    fn row(
        &mut self,
        device: &str,
        what: &str,
        dtype: &str,
        routine: &str,
        row: Row,
    ) -> Result<(), riverrun_testkit::Failure> {
        if row.cases == 0 {
            return self.fail(device, what, "no case was checked");
        }
        let finite = |x: f64| x.is_finite().then_some(x);
        self.add(Line::Row {
            device: device.into(),
            what: what.into(),
            dtype: dtype.into(),
            routine: routine.into(),
            cases: row.cases,
            tensor: row.tensor,
            error: finite(row.error),
            allowed: finite(row.allowed),
            wrong: row.wrong,
            unrepeatable: row.unrepeatable,
        })
    }

    fn skip(
        &mut self,
        device: &str,
        what: &str,
        reason: &str,
    ) -> Result<(), riverrun_testkit::Failure> {
        self.add(Line::Skip {
            device: device.into(),
            what: what.into(),
            reason: reason.into(),
        })
    }

    fn fail(
        &mut self,
        device: &str,
        what: &str,
        reason: &str,
    ) -> Result<(), riverrun_testkit::Failure> {
        self.add(Line::Failure {
            device: device.into(),
            what: what.into(),
            reason: reason.into(),
        })
    }
}

impl Line {
    fn device(&self) -> &str {
        match self {
            Self::Row { device, .. } | Self::Skip { device, .. } | Self::Failure { device, .. } => {
                device
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_survive_the_way_between_processes() {
        let row = Line::Row {
            device: "cuda:0".into(),
            what: "raw".into(),
            dtype: "f32".into(),
            routine: "look-back".into(),
            cases: 3,
            tensor: "h".into(),
            error: None,
            allowed: Some(1.25e-7),
            wrong: 1,
            unrepeatable: false,
        };
        let text = serde_json::to_string(&row).unwrap();
        assert_eq!(serde_json::from_str::<Line>(&text).unwrap(), row);
        assert!(row.is_wrong() && row.text().contains("NaN"));
    }
}
