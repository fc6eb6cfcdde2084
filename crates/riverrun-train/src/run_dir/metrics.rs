//! The metrics and the trajectory of a run, a line a report and a line a window.

use std::path::PathBuf;

use super::{RunDir, lines};
use crate::hybrid::{Observation, Sighting};
use crate::{Error, Report};

/// The windows of a hybrid run that records them.
pub(super) const TRAJECTORY: &str = "trajectory.jsonl";

impl RunDir {
    /// Adds a line to the metrics.
    ///
    /// # Errors
    /// A disk that is full or refuses.
    pub fn append(&self, report: &Report) -> Result<(), Error> {
        lines::append(&self.metrics_path(), report)
    }

    /// Reads the metrics; none if there are none yet. A last line that was cut short is left out.
    ///
    /// # Errors
    /// A file that cannot be read; a line before the last that is not a report.
    pub fn metrics(&self) -> Result<Vec<Report>, Error> {
        let lines = lines::read(&self.metrics_path())?;
        Ok(lines.into_iter().map(|(_, report)| report).collect())
    }

    /// Drops the metrics after a step, which a resumed run will write again. Lines that stay keep their bytes.
    ///
    /// # Errors
    /// As [`metrics`](Self::metrics), and a disk that is full or refuses.
    pub fn cut_metrics(&self, step: u64) -> Result<Vec<Report>, Error> {
        lines::cut(&self.metrics_path(), |report: &Report| report.step <= step)
    }

    /// Reads what predictors saw of a run that [records](crate::hybrid::HybridConfig::trajectory) it.
    ///
    /// # Errors
    /// A run that has recorded nothing; a file that cannot be read, or with a line before the last that is damaged.
    pub fn trajectory(&self) -> Result<Vec<Sighting>, Error> {
        let path = self.trajectory_path();
        if !path.is_file() {
            let path = self.path().display();
            let reason =
                format!("{path} has no {TRAJECTORY}: the run did not record what predictors see");
            return Err(Error::Unsupported(reason));
        }
        let lines = lines::read(&path)?;
        Ok(lines.into_iter().map(|(_, sighting)| sighting).collect())
    }

    /// Adds a line to the trajectory.
    ///
    /// # Errors
    /// A disk that is full or refuses.
    pub(crate) fn append_sighting(&self, seen: &Sighting<&Observation>) -> Result<(), Error> {
        lines::append(&self.trajectory_path(), seen)
    }

    /// Drops the part of the trajectory after a step, which a resumed run will write again.
    ///
    /// # Errors
    /// A file that cannot be read, or with a line before the last that is damaged; a disk that is full or refuses.
    pub(crate) fn cut_trajectory(&self, step: u64) -> Result<(), Error> {
        let keep = |seen: &Sighting| seen.observation.step <= step;
        lines::cut(&self.trajectory_path(), keep).map(drop)
    }

    fn trajectory_path(&self) -> PathBuf {
        self.path().join(TRAJECTORY)
    }
}
