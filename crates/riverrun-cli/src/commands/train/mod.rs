//! `riverrun train`: a new run, or the continuation of one.

mod digits;
mod language;
mod model;
mod options;
mod pendulum;
mod session;
mod xor;

use std::path::Path;

use riverrun_train::RunDir;

use crate::args::TrainArgs;
use crate::failure::Failure;

pub use language::configuration;

/// Trains until the last step or Ctrl-C, and reports the result.
pub fn run(args: &TrainArgs, quiet: bool) -> Result<(), Failure> {
    let task = match args.resume {
        true => folder(args)?.task()?,
        false => args.task.clone(),
    };
    match task.as_deref() {
        None | Some("selective-copy" | "text") => language::run(args, quiet),
        Some("xor") => xor::run(args, quiet),
        Some("digits") => digits::run(args, quiet),
        Some("pendulum") => pendulum::run(args, quiet),
        Some(name) => Err(Failure::User(format!(
            "unknown task {name:?}: it is selective-copy, xor, digits or pendulum, or a text by its path"
        ))),
    }
}

/// The folder of a run to go on with.
fn folder(args: &TrainArgs) -> Result<RunDir, Failure> {
    Ok(RunDir::open(args.out.as_deref().unwrap_or(Path::new(".")))?)
}
