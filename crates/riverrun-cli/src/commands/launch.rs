//! `riverrun launch`: several ranks of this program on this machine.

use std::env;

use riverrun_world::{Error, Launch};

use crate::args::LaunchArgs;
use crate::failure::Failure;

/// Runs until all ranks have ended.
///
/// # Errors
/// More ranks than GPUs, where there is to be one for each; ranks that cannot be started; the first rank that failed.
pub fn run(args: &LaunchArgs) -> Result<(), Failure> {
    if let Some(wanted) = args.gpus {
        let found = crate::ranks::gpus();
        if wanted > found {
            return Err(Failure::User(format!(
                "--gpus {wanted}: this build finds {found} on this machine"
            )));
        }
    }
    let ranks = args.processes.or(args.gpus).unwrap_or(1);
    let launch = Launch::new(ranks, env::current_exe()?).args(&args.words);
    launch.run().map_err(|error| match error {
        Error::Interrupted(_) => Failure::Interrupted,
        Error::Rank { .. } => Failure::World(error.to_string()),
        error => Failure::User(error.to_string()),
    })
}
