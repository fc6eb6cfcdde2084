//! `riverrun tune`: measures the look-back scans of a card around the rules in code, and keeps what is faster in the card's table.

#[cfg(feature = "gpu")]
mod scans;
#[cfg(feature = "gpu")]
mod search;
#[cfg(feature = "gpu")]
mod session;

use riverrun_kernels::recurrence::Gate;
use riverrun_testkit::Storage;

use super::bench::Common;
use super::bench::report::Report;
use crate::args::names::{gate, seconds};
use crate::failure::Failure;

const HELP: &str = "\
One problem is measured for each class of scans: gate, storage type, pass, and lanes (an odd width; up to 512, up to 4096, more). A
tuning is kept where its numbers are right and it is more than 3 % faster than the default, beyond the spread of both. Later runs on this card use the table: their results differ from those without it within
rounding, and are the same bits each time. `riverrun devices` shows the table, RIVERRUN_TUNING=off leaves it out.

Examples:
  riverrun tune
  riverrun tune --device cuda:0 --budget 600 --dtypes bf16 --gates min-gru,rg-lru
  riverrun tune --reset";

/// Options of `riverrun tune`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = HELP)]
pub struct TuneArgs {
    /// The GPU: auto, cuda:0, ...
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: String,
    /// Seconds that it may take; what is not reached then keeps its entry or the default
    #[arg(long, value_name = "SECONDS", default_value_t = 120.0, value_parser = seconds, allow_negative_numbers = true)]
    budget: f64,
    /// Storage types, separated by commas [default: f32 and bf16; f16 uses what was measured for bf16]
    #[arg(long, value_name = "TYPES", value_delimiter = ',', value_enum)]
    dtypes: Vec<Storage>,
    /// Gates of the recurrence, separated by commas [default: raw, min-gru, min-lstm, rg-lru]
    #[arg(long, value_name = "GATES", value_delimiter = ',', value_parser = gate())]
    gates: Vec<Gate>,
    /// Measure, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Delete the card's table, and measure nothing
    #[arg(long, conflicts_with_all = ["budget", "dtypes", "gates", "dry_run"])]
    reset: bool,
}

/// Measures, and keeps the table.
pub fn run(args: &TuneArgs) -> Result<(), Failure> {
    let report = Report::new(&Common::on(&args.device))?;
    #[cfg(feature = "gpu")]
    if let Some(client) = report.client()? {
        let mut session = session::Session::new(args, &client, report)?;
        if args.reset {
            return session.reset();
        }
        session.report.measure_copy()?;
        scans::run(&mut session, args)?;
        return session.conclude(args);
    }
    let device = &report.origin.device;
    Err(Failure::User(format!(
        "there is nothing to tune on {device}: tables are for GPUs"
    )))
}
