//! `riverrun train`: a new run, or the continuation of one.

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

pub use language::configuration;

/// Trains until the last step or Ctrl-C, and reports the result.
pub fn run(args: &TrainArgs, quiet: bool) -> Result<(), Failure> {
    let task = match args.resume {
        true => folder(args)?.task()?,
        false => args.task.clone(),
    };
    let args = &with_format(args)?;
    if let Some(precision) = args.precision().filter(|p| *p != Precision::F32 && !quiet) {
        eprintln!("computing in {precision} with weights in f32; --dtype f32 computes in f32");
    }
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
