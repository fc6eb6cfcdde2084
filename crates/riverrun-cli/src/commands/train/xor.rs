//! `riverrun train --task xor`: the exclusive or of two bits.

use std::io::{Write, stdout};

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
    let mut out = stdout().lock();
    let setup = config.setup()?;
    let trained = session::train(args, quiet, ranks, &device, setup, resumed, &what, &mut out)?;
    let Some((outcome, dir)) = trained else {
        return Ok(());
    };
    if let Some(last) = &outcome.last_validation {
        writeln!(
            out,
            "loss {:.4} nats, {:.0} of 4 rows right, after {} steps in {:.1} s",
            last.loss,
            4.0 * last.accuracy.unwrap_or(0.0),
            outcome.step,
            last.seconds
        )?;
    }
    let path = dir.path().display();
    writeln!(out, "curve   {path}/loss.png, {path}/loss.svg")?;
    Ok(())
}
