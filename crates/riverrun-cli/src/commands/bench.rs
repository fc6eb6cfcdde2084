//! `riverrun bench`.

mod cell;
mod checkpoints;
mod recurrence;
mod stats;

use crate::args::{BenchArgs, BenchCommand};
use crate::failure::Failure;

/// Runs the measurement that was asked for.
pub fn run(args: &BenchArgs) -> Result<(), Failure> {
    match &args.what {
        BenchCommand::Recurrence(args) => recurrence::run(args),
        BenchCommand::Cell(args) => cell::run(args),
        BenchCommand::Checkpoints(args) => checkpoints::run(args),
    }
}
