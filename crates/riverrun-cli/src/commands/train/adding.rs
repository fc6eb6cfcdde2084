//! `riverrun train --task adding`: the sum of two marked numbers of a sequence.

use riverrun_models::LanguageModelKind;
use riverrun_train::tasks::AddingConfig;

use super::{options, session};
use crate::args::TrainArgs;
use crate::failure::Failure;
use crate::ranks::Ranks;

/// Trains until the last step or Ctrl-C, and reports the error of the sums.
pub fn run(args: &TrainArgs, quiet: bool, ranks: &Ranks) -> Result<(), Failure> {
    let used = ["--batch", "--context", "--layers", "--model", "--width"];
    options::refuse_unused(args, "adding", &used)?;
    let kind = match args.model {
        None => None,
        Some(LanguageModelKind::Recurrent(kind)) => Some(kind),
        Some(kind) => {
            return Err(Failure::User(format!(
                "the task adding has no use for {kind}: name a recurrent layer"
            )));
        }
    };
    let device = riverrun::device::parse(&args.device)?;
    let (config, resumed) = options::prepare(
        args,
        ranks,
        AddingConfig::new(),
        |config| &mut config.training,
        |config| {
            options::set(&kind, &mut config.model);
            options::set(&args.width, &mut config.width);
            options::set(&args.layers, &mut config.layers);
        },
    )?;
    let training = &config.training;
    let what = format!(
        "task    adding two marked numbers of {}\nmodel   {}, {} layers of {} hidden units\ntrain   {} steps of {} sequences, {} on {}",
        training.context,
        config.model,
        config.layers,
        config.width,
        training.steps,
        training.batch,
        training.dtype,
        riverrun::device::name(&device)
    );
    let setup = config.setup()?;
    session::train_task(args, quiet, ranks, &device, setup, resumed, &what, |last| {
        format!(
            "mean squared error {:.6} (the mean as a guess: 0.1667), {:.2} % of the sums right within 0.04",
            last.loss,
            100.0 * last.accuracy.unwrap_or(0.0)
        )
    })
}
