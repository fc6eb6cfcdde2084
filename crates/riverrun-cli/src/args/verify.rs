//! Options of `riverrun verify`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::PossibleValuesParser;

use riverrun_testkit::Storage;

const HELP: &str = "\
Exit code 1 if a result is wrong or nothing was checked.
Examples:
  riverrun verify --device cuda:0 --json verify.json
  riverrun verify --op recurrence --only min-gru --dtype bf16 --long";

/// Options of `riverrun verify`.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
pub struct VerifyArgs {
    /// Where: auto, all, cpu, cuda:0, vulkan, ...
    #[arg(long, value_name = "DEVICE", default_value = "all")]
    pub device: String,
    /// Only this operation
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(crate::commands::verify::names()))]
    pub op: Option<String>,
    /// Only this form of the operation: a gate, a cell, a kind of norm, ...
    #[arg(long, value_name = "FORM", requires = "op")]
    pub only: Option<String>,
    /// Only this storage type
    #[arg(long, value_name = "TYPE", value_enum)]
    pub dtype: Option<Storage>,
    /// Large problems too: up to 65 537 steps, 5120 channels, and more than 2^31 elements where the device has the memory
    ///
    /// A large problem is a narrow one of 8 channels, repeated side by side by the device. The oracle computes the narrow
    /// one, and five of the repetitions, the first and the last among them, are compared with it.
    #[arg(long)]
    pub long: bool,
    /// Write the results here too
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Print every row as a line of JSON
    #[arg(long, hide = true)]
    pub json_rows: bool,
    /// Check the parts that standard input asks for
    #[arg(long, hide = true)]
    pub worker: bool,
}
