//! `riverrun train`: a new run, or the continuation of one.

mod hints;
mod pendulum;

use std::io::{Write, stdout};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use riverrun::models::LanguageModel;
use riverrun_train::tasks::{self, Corpus, Text, TokenTask};
use riverrun_train::{Outcome, RunConfig, RunDir, Setup, TaskConfig, Trainer};
use serde_json::Value;

use crate::args::TrainArgs;
use crate::failure::Failure;
use crate::report::Progress;

pub use hints::explain;

/// Trains until the last step or Ctrl-C, and says what came of it.
pub fn run(args: &TrainArgs, quiet: bool) -> Result<(), Failure> {
    if pendulum::asked_for(args) {
        return pendulum::run(args, quiet);
    }
    let device = riverrun::device::parse(&args.device)?;
    let Prepared {
        config,
        task,
        resumed,
    } = if args.resume {
        continued(args)?
    } else {
        begun(args)?
    };
    let what = describe(&config, &*task, &riverrun::device::name(&device));
    let name = task.name();
    let setup = Setup::language(&config, task)?;
    let new = resumed.is_none();
    let dir = match (resumed, &args.out) {
        (Some(dir), _) => dir,
        (None, Some(out)) => RunDir::create(out)?,
        (None, None) => RunDir::next("runs", name)?,
    };
    let trainer = match new {
        true => Trainer::create(setup, dir.clone(), &device)?,
        false => Trainer::resume(setup, dir.clone(), &device)?,
    };
    let trainer = match args.graph {
        true => trainer.with_recorded_steps()?,
        false => trainer,
    };
    let mut out = stdout().lock();
    writeln!(out, "{what}\nrun     {}", dir.path().display())?;
    out.flush()?;

    let stop = stop_on_signals()?;
    let spec = riverrun::device::name(&device);
    if !riverrun::device::is_cpu(&device) && !quiet {
        let kept = match riverrun::device::kernel_cache() {
            Some(file) => format!(", and kept in {}", file.display()),
            None => String::new(),
        };
        eprintln!("preparing {spec}: kernels are compiled and some tuned in the first steps{kept}");
    }
    let outcome = trainer.run(&mut Progress::new(quiet), &stop)?;
    if !outcome.finished {
        let path = dir.path().display();
        writeln!(
            out,
            "stopped after step {} of {} and saved; go on with: riverrun train --resume --out {path}",
            outcome.step, config.training.steps
        )?;
        return Err(Failure::Interrupted);
    }
    conclude(&mut out, &config, &outcome, dir.path())
}

/// A run that is known to make sense, and of which nothing is on the disk yet but what was before.
struct Prepared {
    config: RunConfig,
    task: Box<dyn TokenTask>,
    /// The folder to go on in.
    resumed: Option<RunDir>,
}

/// A new run from the options given.
fn begun(args: &TrainArgs) -> Result<Prepared, Failure> {
    if let Some(name) = args
        .task
        .as_deref()
        .filter(|&name| name != "selective-copy")
    {
        return Err(Failure::User(format!(
            "unknown task {name:?}: it is selective-copy or pendulum, or a text by its path"
        )));
    }
    // A folder in use is found before a large text is read.
    if let Some(out) = &args.out {
        RunDir::vacant(out)?;
    }
    if args.paths.is_empty() {
        if args.split.is_some() {
            return Err(Failure::User("--split is for texts".into()));
        }
        let mut config = RunConfig::selective_copy();
        apply(args, &mut config);
        config.check()?;
        let task = tasks::open(&config)?;
        return Ok(Prepared {
            config,
            task,
            resumed: None,
        });
    }
    let corpus = Corpus::read(&args.paths)?;
    let mut config = RunConfig::text(args.paths.clone(), &corpus, args.split.unwrap_or(0.9));
    apply(args, &mut config);
    config.check()?;
    let task = open_text(&config, &corpus)?;
    Ok(Prepared {
        config,
        task,
        resumed: None,
    })
}

/// The run in `--out`, with more steps if asked for. Any other option must be as it was; the same
/// text may have another name.
fn continued(args: &TrainArgs) -> Result<Prepared, Failure> {
    let dir = RunDir::open(args.out.as_deref().unwrap_or(Path::new(".")))?.lock()?;
    let before: RunConfig = dir.config()?;
    before.check()?;
    let mut config = before.clone();
    // Steps come later and alone: the intervals that suit another number of them would be other options.
    apply(
        &TrainArgs {
            steps: None,
            ..args.clone()
        },
        &mut config,
    );
    if let (TaskConfig::Text(text), Some(split)) = (&mut config.task, args.split) {
        text.split = split;
    }
    // The parts of a batch are a matter of memory: they change the numbers within rounding.
    let parts = std::mem::replace(&mut config.training.accumulate, before.training.accumulate);
    refuse_changes(&before, &config, dir.path())?;
    config.training.accumulate = parts;
    config.training.steps = args.steps.unwrap_or(config.training.steps);
    match &mut config.task {
        _ if args.paths.is_empty() => {}
        TaskConfig::Text(text) => text.sources.clone_from(&args.paths),
        TaskConfig::SelectiveCopy(_) => {
            return Err(Failure::User(format!(
                "{} is not a run on a text",
                dir.path().display()
            )));
        }
    }
    config.check()?;
    let task = tasks::open(&config)?;
    Ok(Prepared {
        config,
        task,
        resumed: Some(dir),
    })
}

fn open_text(config: &RunConfig, corpus: &Corpus) -> Result<Box<dyn TokenTask>, Failure> {
    let TaskConfig::Text(text) = &config.task else {
        return Err(Failure::Bug(
            "a text was read for a task that has none".into(),
        ));
    };
    let training = &config.training;
    Ok(Box::new(Text::new(
        text,
        corpus,
        training.context,
        training.batch,
        training.seed,
    )?))
}

/// Puts the options that were given into a configuration.
fn apply(args: &TrainArgs, config: &mut RunConfig) {
    fn set<T: Clone>(given: &Option<T>, place: &mut T) {
        if let Some(given) = given {
            place.clone_from(given);
        }
    }
    let training = &mut config.training;
    if let Some(steps) = args.steps {
        training.set_steps(steps);
    }
    set(&args.batch, &mut training.batch);
    set(&args.accumulate, &mut training.accumulate);
    set(&args.context, &mut training.context);
    set(&args.lr, &mut training.lr);
    set(&args.warmup, &mut training.warmup);
    set(&args.weight_decay, &mut training.optimizer.weight_decay);
    set(&args.seed, &mut training.seed);
    set(&args.dtype, &mut training.dtype);
    set(&args.checkpoints, &mut training.checkpoints);
    set(&args.eval_every, &mut training.eval_every);
    set(&args.model, &mut config.model.cell);
    set(&args.layers, &mut config.model.layers);
    set(&args.width, &mut config.model.width);
    set(&args.expansion, &mut config.model.expansion);
    set(&args.time_scale, &mut config.model.time_scale);
    set(&args.dropout, &mut config.model.dropout);
    if let TaskConfig::SelectiveCopy(task) = &mut config.task {
        set(&args.data_tokens, &mut task.data_tokens);
        // A token must be kept for up to the whole sequence, so that is what the channels start from.
        if let (Some(context), None) = (args.context, args.time_scale) {
            config.model.time_scale = context;
        }
    }
}

/// A resumed run keeps its options: any other would not be the run that was begun.
fn refuse_changes(before: &RunConfig, after: &RunConfig, dir: &Path) -> Result<(), Failure> {
    let json = |config: &RunConfig| {
        serde_json::to_value(config).map_err(|error| Failure::Bug(error.to_string()))
    };
    match first_difference("", &json(before)?, &json(after)?) {
        None => Ok(()),
        Some((name, was, is)) => Err(Failure::User(format!(
            "{} was begun with {name} {was}, not {is}: a resumed run keeps its options, but for --steps",
            dir.display()
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

/// Sets the flag at the first Ctrl-C or termination signal; leaves at the second.
fn stop_on_signals() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    ctrlc::set_handler(move || {
        if flag.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
        eprintln!("\nstopping after this step; once more to leave without saving");
    })
    .map_err(|error| Failure::Bug(error.to_string()))?;
    Ok(stop)
}

fn describe(config: &RunConfig, task: &dyn TokenTask, device: &str) -> String {
    let (training, model) = (&config.training, &config.model);
    let what = match &config.task {
        TaskConfig::SelectiveCopy(copy) => format!(
            "selective copying, {} data tokens among {} blanks, {} symbols",
            copy.data_tokens,
            training.context,
            task.vocab()
        ),
        TaskConfig::Text(text) => format!(
            "text of {} bytes, {} distinct {}s, context {}",
            text.bytes,
            task.vocab(),
            text.vocabulary.unit(),
            training.context
        ),
    };
    format!(
        "task    {what}\nmodel   {}, {} layers of width {}\ntrain   {} steps of {} sequences, {} on {device}",
        model.cell, model.layers, model.width, training.steps, training.batch, training.dtype
    )
}

fn conclude(
    out: &mut impl Write,
    config: &RunConfig,
    outcome: &Outcome<LanguageModel>,
    dir: &Path,
) -> Result<(), Failure> {
    let path = dir.display();
    if let (Some(last), Some(best)) = (&outcome.last_validation, &outcome.best_validation) {
        match (&config.task, last.accuracy) {
            (TaskConfig::Text(text), _) => {
                let unit = text.vocabulary.unit();
                writeln!(
                    out,
                    "validation loss {:.4} nats per {unit} ({:.4} bits) at step {}; lowest {:.4} at step {}",
                    last.loss,
                    last.bits(),
                    last.step,
                    best.loss,
                    best.step
                )?;
            }
            (TaskConfig::SelectiveCopy(copy), accuracy) => writeln!(
                out,
                "accuracy {:.2} % of {} data tokens among {} blanks (validation loss {:.4}) at step {}",
                100.0 * accuracy.unwrap_or(0.0),
                copy.data_tokens,
                config.training.context,
                last.loss,
                last.step
            )?,
        }
        writeln!(out, "{} steps in {:.1} s", outcome.step, last.seconds)?;
    }
    writeln!(out, "curve   {path}/loss.png, {path}/loss.svg")?;
    if matches!(config.task, TaskConfig::Text(_)) {
        writeln!(out, "sample  riverrun generate {path}")?;
    }
    Ok(())
}
