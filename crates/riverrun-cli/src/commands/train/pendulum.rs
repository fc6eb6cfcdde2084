//! `riverrun train --task pendulum`: a world model that anyone can watch.

use std::io::{Write, stdout};
use std::path::Path;

use riverrun_train::imagination::{AHEAD, Imagination, SEEN};
use riverrun_train::{PendulumRun, RunDir, Trainer};
use serde_json::Value;

use super::{first_difference, stop_on_signals};
use crate::args::TrainArgs;
use crate::failure::Failure;
use crate::report::Progress;

/// Whether the options, or the folder of the run to go on with, are those of a pendulum.
pub fn asked_for(args: &TrainArgs) -> bool {
    if !args.resume {
        return args.task.as_deref() == Some("pendulum");
    }
    let dir = RunDir::open(args.out.as_deref().unwrap_or(Path::new(".")));
    let config = dir.and_then(|dir| dir.config::<Value>());
    config.is_ok_and(|config| config["task"]["kind"] == "pendulum")
}

/// Trains until the last step or Ctrl-C, lets the model imagine, and says how far it saw.
pub fn run(args: &TrainArgs, quiet: bool) -> Result<(), Failure> {
    refuse_others(args)?;
    let device = riverrun::device::parse(&args.device)?;
    let (config, resumed) = if args.resume {
        let (config, dir) = continued(args)?;
        (config, Some(dir))
    } else {
        let mut config = PendulumRun::default();
        if let Some(steps) = args.steps {
            config.training.set_steps(steps);
        }
        apply(args, &mut config);
        (config, None)
    };
    let setup = config.setup()?;
    let new = resumed.is_none();
    let dir = match (resumed, &args.out) {
        (Some(dir), _) => dir,
        (None, Some(out)) => RunDir::create(out)?,
        (None, None) => RunDir::next("runs", "pendulum")?,
    };
    let mut trainer = match new {
        true => Trainer::create(setup, dir.clone(), &device)?,
        false => Trainer::resume(setup, dir.clone(), &device)?,
    };
    if args.graph {
        trainer = trainer.with_recorded_steps()?;
    }
    let mut out = stdout().lock();
    let (rssm, training) = (&config.model.rssm, &config.training);
    writeln!(
        out,
        "task    a swinging pendulum, seen through noise, pushed at random\n\
         model   RSSM: {} deterministic numbers, {} x {} classes\n\
         train   {} steps of {} sequences of {}, {} on {}\n\
         run     {}",
        rssm.deter,
        rssm.stoch,
        rssm.classes,
        training.steps,
        training.batch,
        training.context,
        training.dtype,
        riverrun::device::name(&device),
        dir.path().display()
    )?;
    out.flush()?;
    let stop = stop_on_signals()?;
    let outcome = trainer.run(&mut Progress::new(quiet), &stop)?;
    let path = dir.path().display();
    if !outcome.finished {
        writeln!(
            out,
            "stopped after step {} of {} and saved; go on with: riverrun train --resume --out {path}",
            outcome.step, training.steps
        )?;
        return Err(Failure::Interrupted);
    }
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
    let dir = RunDir::open(args.out.as_deref().unwrap_or(Path::new(".")))?.lock()?;
    let before: PendulumRun = dir.config()?;
    let mut config = before.clone();
    apply(args, &mut config);
    let json = |config: &PendulumRun| {
        serde_json::to_value(config).map_err(|error| Failure::Bug(error.to_string()))
    };
    if let Some((name, was, is)) = first_difference("", &json(&before)?, &json(&config)?) {
        return Err(Failure::User(format!(
            "{} was begun with {name} {was}, not {is}: a resumed run keeps its options, but for --steps",
            dir.path().display()
        )));
    }
    config.training.steps = args.steps.unwrap_or(config.training.steps);
    Ok((config, dir))
}
