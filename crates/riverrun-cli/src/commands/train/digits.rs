//! `riverrun train --task digits`: digits told apart by convolution, row by row, or pixel by pixel.

use riverrun_train::tasks::{Digits, DigitsRun, Task};

use super::{options, session};
use crate::args::TrainArgs;
use crate::failure::Failure;
use crate::ranks::Ranks;

/// Trains until the last step or Ctrl-C, and reports the part of the digits that were right.
pub fn run(args: &TrainArgs, quiet: bool, ranks: &Ranks) -> Result<(), Failure> {
    options::refuse_unused(
        args,
        "digits",
        &["--batch", "--epochs", "--net", "--batch-norm", "--data"],
    )?;
    let device = riverrun::device::parse(&args.device)?;
    let new = DigitsRun::new(args.net.unwrap_or_default());
    let (mut config, resumed) = options::prepare(
        args,
        ranks,
        new,
        |config| &mut config.training,
        |config| {
            options::set(&args.net, &mut config.net);
            config.batch_norm |= args.batch_norm;
            if let Some(folder) = &args.data {
                config.data.folder = Some(folder.clone());
            }
        },
    )?;
    if args.epochs.is_some() {
        let task = Digits::new(&config.data, config.training.batch, config.training.seed)?;
        let (items, per_step) = (task.items_per_epoch(), task.items_per_step());
        options::set_epochs(args, &mut config.training, items, per_step)?;
    }
    let training = &config.training;
    let source = match &config.data.folder {
        Some(folder) => format!("digits of {}", folder.display()),
        None => "drawn digits (--data FOLDER reads MNIST's files)".to_string(),
    };
    let what = format!(
        "task    {source}\nmodel   {}\ntrain   {} steps of {} images, {} on {}",
        config.net,
        training.steps,
        training.batch,
        training.dtype,
        riverrun::device::name(&device)
    );
    let setup = config.setup()?;
    session::train_task(args, quiet, ranks, &device, setup, resumed, &what, |last| {
        format!(
            "loss {:.4} nats, {:.2} % of the test images right",
            last.loss,
            100.0 * last.accuracy.unwrap_or(0.0)
        )
    })
}
