//! `riverrun train --task pendulum`: a world model that anyone can watch.

use std::io::{Write, stdout};

use riverrun_train::imagination::{AHEAD, Imagination, SEEN};
use riverrun_train::{PendulumRun, RunDir};

use super::session;
use crate::args::TrainArgs;
use crate::failure::Failure;

/// Trains until the last step or Ctrl-C, lets the model imagine, and says how far it saw.
pub fn run(args: &TrainArgs, quiet: bool) -> Result<(), Failure> {
    refuse_others(args)?;
    let device = riverrun::device::parse(&args.device)?;
    let (config, resumed) = if args.resume {
        let (config, dir) = continued(args)?;
        (config, Some(dir))
    } else {
        if let Some(out) = &args.out {
            RunDir::vacant(out)?;
        }
        let mut config = PendulumRun::default();
        if let Some(steps) = args.steps {
            config.training.set_steps(steps);
        }
        apply(args, &mut config);
        (config, None)
    };
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
    let (outcome, dir) = session::train(args, quiet, &device, setup, resumed, &what, &mut out)?;
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

/// Options of other tasks.
fn refuse_others(args: &TrainArgs) -> Result<(), Failure> {
    let given = [
        ("--model", args.model.is_some()),
        ("--layers", args.layers.is_some()),
        ("--width", args.width.is_some()),
        ("--expansion", args.expansion.is_some()),
        ("--time-scale", args.time_scale.is_some()),
        ("--dropout", args.dropout.is_some()),
        ("--split", args.split.is_some()),
        ("--data-tokens", args.data_tokens.is_some()),
    ];
    match given.iter().find(|(_, given)| *given) {
        None if args.paths.is_empty() => Ok(()),
        None => Err(Failure::User("the pendulum takes no text".into())),
        Some((name, _)) => Err(Failure::User(format!(
            "{name} is no option of the pendulum"
        ))),
    }
}

/// Puts the options that were given into a configuration, all but the steps.
fn apply(args: &TrainArgs, config: &mut PendulumRun) {
    fn set<T: Clone>(given: &Option<T>, place: &mut T) {
        if let Some(given) = given {
            place.clone_from(given);
        }
    }
    let training = &mut config.training;
    set(&args.batch, &mut training.batch);
    set(&args.accumulate, &mut training.accumulate);
    set(&args.context, &mut training.context);
    set(&args.lr, &mut training.lr);
    set(&args.warmup, &mut training.warmup);
    set(&args.weight_decay, &mut training.optimizer.weight_decay);
    set(&args.seed, &mut training.seed);
    set(&args.dtype, &mut training.dtype);
    set(&args.eval_every, &mut training.eval_every);
}

/// The run in `--out`, with more steps if asked for; any other option must be as it was.
fn continued(args: &TrainArgs) -> Result<(PendulumRun, RunDir), Failure> {
    let dir = super::folder(args)?.lock()?;
    let before: PendulumRun = dir.config()?;
    let mut config = before.clone();
    apply(args, &mut config);
    session::refuse_changes(&before, &config, &dir)?;
    config.training.steps = args.steps.unwrap_or(config.training.steps);
    Ok((config, dir))
}
