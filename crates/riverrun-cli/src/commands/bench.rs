//! `riverrun bench`.

mod linear;
mod recurrence;
mod stats;

use crate::args::{BenchArgs, BenchCommand};
use crate::failure::Failure;

/// Runs the measurement that was asked for.
pub fn run(args: &BenchArgs) -> Result<(), Failure> {
    match &args.what {
        BenchCommand::Linear(args) => linear::run(args),
        BenchCommand::Recurrence(args) => recurrence::run(args),
    }
}
