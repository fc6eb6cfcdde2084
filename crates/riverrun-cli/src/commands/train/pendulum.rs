//! `riverrun train --task pendulum`: a world model that anyone can watch.

use std::io::{Write, stdout};

use riverrun_train::PendulumRun;
use riverrun_train::imagination::{AHEAD, Imagination, SEEN};

use super::{options, session};
use crate::args::TrainArgs;
use crate::failure::Failure;
use crate::ranks::Ranks;

/// Trains until the last step or Ctrl-C, lets the model imagine, and says how far it saw.
pub fn run(args: &TrainArgs, quiet: bool, ranks: &Ranks) -> Result<(), Failure> {
    options::refuse_unused(args, "pendulum", &["--batch", "--context"])?;
    let device = riverrun::device::parse(&args.device)?;
    let (config, resumed) = options::prepare(
        args,
        ranks,
        PendulumRun::default(),
        |config| &mut config.training,
        |_| (),
    )?;
    let setup = config.setup()?;
    let (rssm, training) = (&config.model.rssm, &config.training);
    let what = format!(
        "task    a swinging pendulum, seen through noise, pushed at random\n\
         model   RSSM: {} deterministic numbers, {} x {} classes\n\
         train   {} steps of {} sequences of {}, {} on {}",
        rssm.deter,
        rssm.stoch,
        rssm.classes,
        training.steps,
        training.batch,
        training.context,
        training.dtype,
        riverrun::device::name(&device)
    );
    let mut out = stdout().lock();
    let trained = session::train(args, quiet, ranks, &device, setup, resumed, &what, &mut out)?;
    let Some((outcome, dir)) = trained else {
        return Ok(());
    };
    let path = dir.path().display();
    let found = Imagination::new(&outcome.model, &config.pendulum()?, training.seed, &device);
    found.write(&dir)?;
    if let Some(last) = &outcome.last_validation {
        writeln!(
            out,
            "validation loss {:.4} nats a step at step {}\n{} steps in {:.1} s",
            last.loss, last.step, outcome.step, last.seconds
        )?;
    }
    writeln!(
        out,
        "after {SEEN} observations it imagines the tip {AHEAD} steps ahead to {:.3} rod lengths on average: {:.1} times nearer \
         than \"nothing changes\"",
        found.error(),
        found.gain()
    )?;
    writeln!(out, "curve   {path}/loss.png, {path}/loss.svg")?;
    writeln!(
        out,
        "picture {path}/imagination.png, {path}/imagination.svg"
    )?;
    Ok(())
}
