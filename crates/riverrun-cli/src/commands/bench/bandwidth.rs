//! Tables of kernels against the copy bandwidth of the same run.

use std::fmt;
use std::io::{Write, stdout};
use std::path::Path;

use serde::Serialize;

use super::stats::{Refused, Timing};
use crate::failure::Failure;
use crate::origin::Origin;

/// A line of the table. Its `Display` is the columns before those of every line, in the widths of [`HEADER`](Self::HEADER).
pub(super) trait Row: Serialize + fmt::Display {
    /// The heads of the first columns.
    const HEADER: &str;

    /// The name in the list of refused measurements.
    fn name(&self) -> String;

    fn speed(&self) -> &Speed;
}

/// The columns of every line.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Speed {
    pub time: Timing,
    pub gb_per_s: f64,
    pub of_copy: f64,
}

/// The file of `--json`.
#[derive(Debug, Serialize)]
struct Report<'a, R> {
    #[serde(flatten)]
    origin: Origin,
    copy_gb_per_s: f64,
    rows: Vec<R>,
    /// Measurements that were refused as unsteady.
    refused: &'a [String],
}

/// Prints a table as it grows and keeps its rows.
pub(super) struct Table<R> {
    /// The copy bandwidth in bytes per second.
    pub copy: f64,
    pub rows: Vec<R>,
    refused: Refused,
}

impl<R: Row> Table<R> {
    pub fn new(origin: &Origin, copy: f64) -> Result<Self, Failure> {
        let mut out = stdout();
        writeln!(
            out,
            "{}: {}; copy {:.0} GB/s (bytes read plus bytes written)",
            origin.device,
            origin.name,
            copy / 1e9
        )?;
        writeln!(
            out,
            "{} {:>11} {:>6} {:>8} {:>8}",
            R::HEADER,
            "median ms",
            "±",
            "GB/s",
            "of copy"
        )?;
        Ok(Self {
            copy,
            rows: Vec::new(),
            refused: Refused::default(),
        })
    }

    /// The speed of a call that moves so many bytes.
    pub fn speed(&self, bytes: usize, time: Timing) -> Speed {
        let rate = bytes as f64 / time.median;
        Speed {
            time,
            gb_per_s: rate / 1e9,
            of_copy: rate / self.copy,
        }
    }

    /// Prints and keeps a row, unless its timings are unsteady.
    pub fn add(&mut self, row: R) -> Result<(), Failure> {
        let speed = row.speed();
        if !self.refused.admits(|| row.name(), &speed.time) {
            return Ok(());
        }
        writeln!(
            stdout(),
            "{row} {:>11.4} {:>5.1}% {:>8.0} {:>7.1}%",
            speed.time.median * 1e3,
            speed.time.spread() * 100.0,
            speed.gb_per_s,
            speed.of_copy * 100.0
        )?;
        self.rows.push(row);
        Ok(())
    }

    /// Writes the file of `--json`, if wanted.
    pub fn end(self, json: Option<&Path>, origin: Origin) -> Result<(), Failure> {
        let Some(path) = json else { return Ok(()) };
        let report = Report {
            origin,
            copy_gb_per_s: self.copy / 1e9,
            rows: self.rows,
            refused: self.refused.names(),
        };
        super::write_json(path, &report)
    }
}
