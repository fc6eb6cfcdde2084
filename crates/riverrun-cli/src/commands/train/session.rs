//! The parts of a training command that all tasks share: the folder, recorded steps, progress, Ctrl-C.

use std::io::{Write, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::Device;
use riverrun_train::hybrid::Status;
use riverrun_train::{
    Objective, Outcome, PARTS, PartSeconds, Report, RunDir, Setup, Trainer, slowest,
};
use serde::Serialize;
use serde_json::Value;

use crate::args::TrainArgs;
use crate::commands::memory::{Watched, print_weights};
use crate::failure::Failure;
use crate::ranks::Ranks;
use crate::report::Progress;

/// Trains in the folder to go on in, or else in a new one, to the end. `what` describes the run. Only the first of several ranks
/// has something to report.
///
/// # Errors
/// [`Failure::Interrupted`] if it was stopped, after saying how to go on.
pub fn train<O: Objective>(
    args: &TrainArgs,
    quiet: bool,
    ranks: &Ranks,
    device: &Device,
    setup: Setup<O>,
    resumed: Option<RunDir>,
    what: &str,
    out: &mut impl Write,
) -> Result<Option<(Outcome<O::Model>, RunDir)>, Failure> {
    let along_time = args.context_parallel.unwrap_or(1);
    let (setup, way) = ranks.spread(setup, device, along_time, args.shard_optimizer)?;
    setup.check_memory(device)?;
    let (steps, batch, patience) = (
        setup.training().steps,
        setup.training().batch,
        setup.training().patience,
    );
    let new = resumed.is_none();
    let dir = match (resumed, &args.out) {
        (Some(dir), _) => {
            if let Some(step) = args.from_step.filter(|_| ranks.is_first()) {
                dir.return_to(step)?;
            }
            dir
        }
        (None, out) if !ranks.is_first() => RunDir::of_another(out.clone().unwrap_or_default()),
        (None, Some(out)) => RunDir::create(out)?,
        (None, None) => RunDir::next("runs", setup.task().name())?,
    };
    let spec = riverrun::device::name(device);
    if !riverrun::device::is_cpu(device) && !quiet {
        let saved = match riverrun::device::cache::folder() {
            Some(folder) => format!(", and kept in {}", folder.display()),
            None => String::new(),
        };
        eprintln!("preparing {spec}: kernels are compiled{saved}");
    }
    setup.compile_ahead(device);
    let mut trainer = match new {
        true => Trainer::create(setup, dir.clone(), device)?,
        false => Trainer::resume(setup, dir.clone(), device)?,
    };
    if args.tensorboard {
        trainer = trainer.with_tensorboard()?;
    }
    if args.gradients {
        trainer = trainer.with_gradient_norms();
    }
    let mut graph = None;
    if args.profile {
        trainer = trainer.with_profile()?;
    } else if args.graph {
        trainer = trainer.with_recorded_steps()?;
    } else if spec.starts_with("cuda") && !args.no_graph {
        graph = Some(match trainer.record_steps() {
            Ok(()) => {
                "steps are recorded and run again by one call each; --no-graph switches that off"
                    .to_string()
            }
            Err(error) => error.to_string(),
        });
    }
    if ranks.is_first() {
        writeln!(out, "{what}")?;
        if let Some(way) = way {
            let (size, groups) = (ranks.size(), ranks.size() / along_time);
            let own = batch / groups;
            match along_time {
                1 => writeln!(
                    out,
                    "ranks   global batch {batch}, {own} a rank, {size} ranks; gradients by {way}"
                )?,
                _ => writeln!(
                    out,
                    "ranks   global batch {batch}, {own} a group, {groups} groups of {along_time} ranks along time; states and gradients by {way}"
                )?,
            }
        }
        writeln!(out, "run     {}", dir.path().display())?;
        out.flush()?;
    }

    let stop = stop_on_signals(ranks.is_first())?;
    if let Some(graph) = graph.filter(|_| !quiet) {
        eprintln!("{graph}");
    }
    let watches = args.memory || args.memory_budget.is_some();
    let progress = Watched::new(Progress::new(quiet), watches.then(|| device.clone()));
    let mut progress = progress.within(args.memory_budget);
    let outcome = trainer.run(&mut progress, &stop)?;
    if !ranks.is_first() {
        return match outcome.finished {
            true => Ok(None),
            false => Err(Failure::Interrupted),
        };
    }
    if args.memory {
        progress.last.print(out)?;
        print_weights(out, &outcome.model)?;
    }
    if let Some(status) = &outcome.hybrid {
        conclude(out, status)?;
    }
    print_profile(out, &outcome.profile)?;
    if outcome.finished {
        if let Some(patience) = patience.filter(|_| outcome.step < steps) {
            writeln!(
                out,
                "stopped before step {steps}: no lower validation loss in {patience} evaluations"
            )?;
        }
        return Ok(Some((outcome, dir)));
    }
    let path = dir.path().display();
    writeln!(
        out,
        "stopped after step {} of {steps} and saved; go on with: riverrun train --resume --out {path}",
        outcome.step
    )?;
    Err(Failure::Interrupted)
}

/// Trains a task without a language model, as [`train`] does, and says how the last evaluation ended: `result` makes a line of it and
/// of the steps done.
///
/// # Errors
/// As there.
pub fn train_task<O: Objective>(
    args: &TrainArgs,
    quiet: bool,
    ranks: &Ranks,
    device: &Device,
    setup: Setup<O>,
    resumed: Option<RunDir>,
    what: &str,
    result: impl Fn(&Report) -> String,
) -> Result<(), Failure> {
    let mut out = stdout().lock();
    let trained = train(args, quiet, ranks, device, setup, resumed, what, &mut out)?;
    let Some((outcome, dir)) = trained else {
        return Ok(());
    };
    if let Some(last) = &outcome.last_validation {
        let (result, steps) = (result(last), outcome.step);
        writeln!(
            out,
            "{result}, after {steps} steps in {:.1} s",
            last.seconds
        )?;
    }
    let path = dir.path().display();
    writeln!(out, "curve   {path}/loss.png, {path}/loss.svg")?;
    Ok(())
}

/// The parts of a step on every rank.
fn print_profile(out: &mut impl Write, ranks: &[PartSeconds]) -> Result<(), Failure> {
    if ranks.is_empty() {
        return Ok(());
    }
    write!(out, "profile  rank")?;
    for part in PARTS {
        write!(out, " {part:>9}")?;
    }
    writeln!(out, "   ms a step, medians")?;
    for (rank, parts) in ranks.iter().enumerate() {
        write!(out, "{rank:>13}")?;
        for seconds in parts {
            write!(out, " {:>9.3}", 1e3 * seconds)?;
        }
        writeln!(out)?;
    }
    if let Some((rank, factor)) = slowest(ranks).filter(|_| ranks.len() > 1) {
        writeln!(
            out,
            "         rank {rank} is the slowest: its own work takes {factor:.2} times that of the rank in the middle"
        )?;
    }
    Ok(())
}

/// The summary of the predictions of a hybrid run.
fn conclude(out: &mut impl Write, status: &Status) -> Result<(), Failure> {
    let counts = status.counts;
    writeln!(
        out,
        "hybrid  {} real steps; {} predictions in the place of {} steps, {} of them taken back with {} steps",
        counts.real, counts.predictions, counts.predicted, counts.failures, counts.taken_back
    )?;
    if counts.fallbacks > 0 {
        writeln!(
            out,
            "        {} predictions were made by last-update, because the predictor was no better",
            counts.fallbacks
        )?;
    }
    for (violation, windows) in &status.violations {
        writeln!(out, "        in {windows} windows: {violation}")?;
    }
    Ok(())
}

/// Refuses a resumed run with other options: it would not be the run that was begun.
pub fn refuse_changes(
    before: &impl Serialize,
    after: &impl Serialize,
    dir: &RunDir,
) -> Result<(), Failure> {
    fn json(config: &impl Serialize) -> Result<Value, Failure> {
        serde_json::to_value(config).map_err(|error| Failure::Bug(error.to_string()))
    }
    match first_difference("", &json(before)?, &json(after)?) {
        None => Ok(()),
        Some((name, was, is)) => Err(Failure::User(format!(
            "{} was begun with {name} {was}, not {is}: a resumed run keeps its options, but for --steps",
            dir.path().display()
        ))),
    }
}

fn first_difference(name: &str, before: &Value, after: &Value) -> Option<(String, Value, Value)> {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => before.iter().find_map(|(key, value)| {
            first_difference(key, value, after.get(key).unwrap_or(&Value::Null))
        }),
        _ if before == after => None,
        _ => Some((name.to_string(), before.clone(), after.clone())),
    }
}

/// Sets the flag at the first Ctrl-C or termination signal, and says so if it is to; exits at the second.
fn stop_on_signals(says: bool) -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    ctrlc::set_handler(move || {
        if flag.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
        if says {
            eprintln!("\nstopping after this step; once more to leave without saving");
        }
    })
    .map_err(|error| Failure::Bug(error.to_string()))?;
    Ok(stop)
}
