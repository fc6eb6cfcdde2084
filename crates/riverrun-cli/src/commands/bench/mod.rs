//! `riverrun bench`.

mod attention;
mod bandwidth;
mod cell;
#[cfg(feature = "gpu")]
mod device;
mod encoder;
mod gelu;
mod host;
mod hybrid;
mod launches;
mod linear;
mod recompute;
mod recurrence;
mod rollout;
mod rows;
mod rssm;
mod setup;
mod stats;
mod step;
mod train;

use std::io::stdout;

use super::memory::MemoryUse;
use super::write_json;
use crate::args::{BenchArgs, BenchCommand};
use crate::failure::Failure;

/// Runs the requested measurement.
pub fn run(args: &BenchArgs) -> Result<(), Failure> {
    measure(&args.what)?;
    let common = args.what.common();
    if common.memory {
        let device = riverrun::device::parse(&common.device)?;
        MemoryUse::of(&device).print(&mut stdout())?;
    }
    Ok(())
}

fn measure(what: &BenchCommand) -> Result<(), Failure> {
    match what {
        BenchCommand::Linear(args) => linear::run(args),
        BenchCommand::Train(args) => train::run(args),
        BenchCommand::Recurrence(args) => recurrence::run(args),
        BenchCommand::Cell(args) => cell::run(args),
        BenchCommand::Recompute(args) => recompute::run(args),
        BenchCommand::Attention(args) => attention::run(args),
        BenchCommand::Rollout(args) => rollout::run(args),
        BenchCommand::Step(args) => step::run(args),
        BenchCommand::Encoder(args) => encoder::run(args),
        BenchCommand::Rssm(args) => rssm::run(args),
        BenchCommand::Hybrid(args) => hybrid::run(args),
        BenchCommand::Gelu(args) => gelu::run(args),
        BenchCommand::Norm(args) => rows::run(args, rows::Operation::Norm),
        BenchCommand::Loss(args) => rows::run(args, rows::Operation::Loss),
    }
}
