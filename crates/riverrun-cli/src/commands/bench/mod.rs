//! `riverrun bench`.

mod cell;
mod checkpoints;
#[cfg(feature = "gpu")]
mod device;
mod host;
mod linear;
mod recurrence;
mod rows;
mod stats;
mod train;

use std::path::Path;

use serde::Serialize;

use crate::args::{BenchArgs, BenchCommand};
use crate::failure::Failure;

/// Runs the measurement that was asked for.
pub fn run(args: &BenchArgs) -> Result<(), Failure> {
    match &args.what {
        BenchCommand::Linear(args) => linear::run(args),
        BenchCommand::Train(args) => train::run(args),
        BenchCommand::Recurrence(args) => recurrence::run(args),
        BenchCommand::Cell(args) => cell::run(args),
        BenchCommand::Checkpoints(args) => checkpoints::run(args),
        BenchCommand::Norm(args) => rows::run(args, rows::Operation::Norm),
        BenchCommand::Loss(args) => rows::run(args, rows::Operation::Loss),
    }
}

/// Writes the file of `--json`.
fn write_json(path: &Path, report: &impl Serialize) -> Result<(), Failure> {
    let text =
        serde_json::to_string_pretty(report).map_err(|error| Failure::Bug(error.to_string()))?;
    std::fs::write(path, text)
        .map_err(|error| Failure::User(format!("{}: {error}", path.display())))
}
