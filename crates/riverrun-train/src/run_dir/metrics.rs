//! The metrics of a run, a line a report.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};

use super::RunDir;
use super::files::write_atomic;
use crate::{Error, Report};

impl RunDir {
    /// Adds a line to the metrics.
    ///
    /// # Errors
    /// A disk that is full or refuses.
    pub fn append(&self, report: &Report) -> Result<(), Error> {
        let path = self.metrics_path();
        let mut line = serde_json::to_string(report).map_err(|error| Error::write(&path, error))?;
        line.push('\n');
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write_all(line.as_bytes()))
            .map_err(|error| Error::write(path, error))
    }

    /// Reads the metrics; none if there are none yet. A last line that was cut short is left out.
    ///
    /// # Errors
    /// A file that cannot be read; a line before the last that is not a report.
    pub fn metrics(&self) -> Result<Vec<Report>, Error> {
        Ok(self
            .lines()?
            .into_iter()
            .map(|(_, report)| report)
            .collect())
    }

    /// Drops the metrics after a step, which a resumed run will write again. Lines that stay keep their bytes.
    ///
    /// # Errors
    /// As [`metrics`](Self::metrics), and a disk that is full or refuses.
    pub fn cut_metrics(&self, step: u64) -> Result<Vec<Report>, Error> {
        let mut lines = self.lines()?;
        lines.retain(|(_, report)| report.step <= step);
        let text: String = lines.iter().map(|(line, _)| line.as_str()).collect();
        let path = self.metrics_path();
        if fs::metadata(&path).is_ok_and(|file| file.len() != text.len() as u64) {
            write_atomic(&path, text.as_bytes())?;
        }
        Ok(lines.into_iter().map(|(_, report)| report).collect())
    }

    /// The whole lines of the metrics, and the report on each.
    fn lines(&self) -> Result<Vec<(String, Report)>, Error> {
        let path = self.metrics_path();
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::read(path, error)),
        };
        bytes
            .split_inclusive(|&byte| byte == b'\n')
            .filter(|line| line.ends_with(b"\n"))
            .enumerate()
            .map(|(i, line)| {
                let damaged =
                    |reason: String| Error::damaged(&path, format!("line {}: {reason}", i + 1));
                let text = str::from_utf8(line).map_err(|error| damaged(error.to_string()))?;
                let report =
                    serde_json::from_str(text).map_err(|error| damaged(error.to_string()))?;
                Ok((text.to_string(), report))
            })
            .collect()
    }
}
