//! `riverrun train`: a new run, or the continuation of one.

mod adding;
mod digits;
mod language;
mod model;
mod options;
mod pendulum;
mod session;
mod xor;

use std::path::Path;

use riverrun_train::{Precision, RunDir};

use crate::args::{Format, TrainArgs};
use crate::failure::Failure;
use crate::ranks::Ranks;

pub use language::configuration;

/// Trains until the last step or Ctrl-C, and reports the result: as one rank of several, where a launcher has started them.
pub fn run(args: &TrainArgs, quiet: bool) -> Result<(), Failure> {
    // Before the ranks meet: after it, the first of them makes the folder of a new run.
    let begun = args
        .out
        .as_ref()
        .is_some_and(|out| RunDir::open(out).is_ok());
    let ranks = Ranks::join()?;
    let quiet = quiet || !ranks.is_first();
    let resume = args.resume || ranks.restarted() && goes_on(args, begun, quiet);
    let result = run_rank(
        &TrainArgs {
            resume,
            ..args.clone()
        },
        quiet,
        &ranks,
    );
    ranks.leave(result)
}

fn run_rank(args: &TrainArgs, quiet: bool, ranks: &Ranks) -> Result<(), Failure> {
    if ranks.size() > 1 && args.paths.iter().any(|path| path == "-") {
        return Err(Failure::User(
            "several ranks cannot share standard input: name a file instead of -".into(),
        ));
    }
    let args = &TrainArgs {
        device: ranks.device(&args.device)?,
        ..args.clone()
    };
    let task = match args.resume {
        true => folder(args)?.task()?,
        false => args.task.clone(),
    };
    let args = &with_format(args)?;
    if let Some(precision) = args.precision().filter(|p| *p != Precision::F32 && !quiet) {
        eprintln!("computing in {precision} with weights in f32; --dtype f32 computes in f32");
    }
    match task.as_deref() {
        None | Some("selective-copy" | "text") => language::run(args, quiet, ranks),
        Some("adding") => adding::run(args, quiet, ranks),
        Some("xor") => xor::run(args, quiet, ranks),
        Some("digits") => digits::run(args, quiet, ranks),
        Some("pendulum") => pendulum::run(args, quiet, ranks),
        Some(name) => Err(Failure::User(format!(
            "unknown task {name:?}: it is selective-copy, adding, xor, digits or pendulum, or a text by its path"
        ))),
    }
}

/// Whether a run that its launcher has started again goes on from its last checkpoint: where it had begun.
fn goes_on(args: &TrainArgs, begun: bool, quiet: bool) -> bool {
    if !quiet {
        eprintln!(
            "started again by the launcher: {}",
            match (begun, &args.out) {
                (true, _) => "the run goes on from its last checkpoint",
                (false, Some(_)) => "the run had not begun",
                (false, None) => "without --out this is another run",
            }
        );
    }
    begun
}

/// The options with the format of the device in place of `auto`; a resumed run keeps its own.
///
/// # Errors
/// A device that does not exist.
pub fn with_format(args: &TrainArgs) -> Result<TrainArgs, Failure> {
    let mut args = args.clone();
    if !args.resume && args.precision().is_none() {
        let device = riverrun::device::parse(&args.device)?;
        args.dtype = Some(Format::Of(Precision::of(&device)));
    }
    Ok(args)
}

/// The folder of a run to go on with.
fn folder(args: &TrainArgs) -> Result<RunDir, Failure> {
    Ok(RunDir::open(args.out.as_deref().unwrap_or(Path::new(".")))?)
}
