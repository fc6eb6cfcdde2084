//! `riverrun train --task xor`: the exclusive or of two bits.

use riverrun_train::tasks::XorConfig;

use super::{options, session};
use crate::args::TrainArgs;
use crate::failure::Failure;
use crate::ranks::Ranks;

pub fn run(args: &TrainArgs, quiet: bool, ranks: &Ranks) -> Result<(), Failure> {
    options::refuse_unused(args, "xor", &["--width"])?;
    let device = riverrun::device::parse(&args.device)?;
    let (config, resumed) = options::prepare(
        args,
        ranks,
        XorConfig::new(),
        |config| &mut config.training,
        |config| options::set(&args.width, &mut config.hidden),
    )?;
    let training = &config.training;
    let what = format!(
        "task    exclusive or of two bits\nmodel   {} hidden units\ntrain   {} steps of 4 rows, {} on {}",
        config.hidden,
        training.steps,
        training.dtype,
        riverrun::device::name(&device)
    );
    let setup = config.setup()?;
    session::train_task(args, quiet, ranks, &device, setup, resumed, &what, |last| {
        format!(
            "loss {:.4} nats, {:.0} of 4 rows right",
            last.loss,
            4.0 * last.accuracy.unwrap_or(0.0)
        )
    })
}
