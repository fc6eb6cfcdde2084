//! Language models: of a text, or of selective copying.

use std::io::{Write, stdout};
use std::path::Path;

use burn::tensor::Device;
use riverrun_models::weights::Published;
use riverrun_models::{AnyLanguageModel, LoraConfig};
use riverrun_train::tasks::{self, Corpus, SymbolKind, Text, TextConfig, TokenTask, Vocabulary};
use riverrun_train::{Outcome, RunConfig, RunDir, Setup, TaskConfig};

use super::model;
use super::options::{set, set_epochs, set_training};
use super::session::{refuse_changes, train};
use crate::args::TrainArgs;
use crate::commands::memory::megabytes;
use crate::failure::Failure;
use crate::ranks::Ranks;

/// The peak learning rate of a run that starts from published weights.
const FINE_TUNING: f64 = 5e-5;
/// That of LoRA's factors, for which about ten times as much is best: Schulman et al., *LoRA Without Regret* (2025).
const LORA: f64 = 5e-4;

pub fn run(args: &TrainArgs, quiet: bool, ranks: &Ranks) -> Result<(), Failure> {
    let device = riverrun::device::parse(&args.device)?;
    let Prepared {
        config,
        task,
        weights,
        resumed,
    } = if args.resume {
        continued(args, ranks)?
    } else {
        begun(args, ranks)?
    };
    let what = describe(&config, &*task, &riverrun::device::name(&device));
    warn_of_budget(args, &config, &device, quiet)?;
    let setup = Setup::language(&config, task)?;
    let setup = match weights {
        Some(weights) => setup.with_weights(weights),
        None => setup,
    };
    let mut out = stdout().lock();
    let trained = train(args, quiet, ranks, &device, setup, resumed, &what, &mut out)?;
    let Some((outcome, dir)) = trained else {
        return Ok(());
    };
    conclude(&mut out, &config, &outcome, dir.path())
}

/// Says so where the plan of a run is beyond `--memory-budget`.
fn warn_of_budget(
    args: &TrainArgs,
    config: &RunConfig,
    device: &Device,
    quiet: bool,
) -> Result<(), Failure> {
    let Some(budget) = args.memory_budget.filter(|_| !quiet) else {
        return Ok(());
    };
    let plan = match args.context_parallel.unwrap_or(1) {
        1 => config.memory_plan_on(device)?,
        ranks => config.memory_plan_along_time(ranks)?,
    };
    if plan.peak() > budget {
        eprintln!(
            "warning: the run is expected to take {}, more than --memory-budget {}: try --accumulate, a smaller --batch, \
             --saved-states none, or --dtype bf16",
            megabytes(plan.peak()),
            megabytes(budget)
        );
    }
    Ok(())
}

/// The configuration of the run that the options describe: a new one, or with `--resume` the one in `--out`.
///
/// # Errors
/// Options that make no sense, or that are of a task without a language model.
pub fn configuration(args: &TrainArgs) -> Result<RunConfig, Failure> {
    let task = match args.resume {
        true => super::folder(args)?.task()?,
        false => args.task.clone(),
    };
    if let Some(name) = task.filter(|name| !TaskConfig::NAMES.contains(&name.as_str())) {
        return Err(Failure::User(format!(
            "the task {name} has no language model, and no plan"
        )));
    }
    let ranks = &Ranks::alone();
    let prepared = if args.resume {
        continued(args, ranks)?
    } else {
        begun(args, ranks)?
    };
    Ok(prepared.config)
}

/// A run that is known to make sense, and of which nothing is on the disk yet but what was before.
struct Prepared {
    config: RunConfig,
    task: Box<dyn TokenTask>,
    /// The weights that a new run starts from.
    weights: Option<Published>,
    /// The folder to go on in.
    resumed: Option<RunDir>,
}

/// A new run from the options given.
fn begun(args: &TrainArgs, ranks: &Ranks) -> Result<Prepared, Failure> {
    // A folder in use is found before a large text is read.
    if let Some(out) = args.out.as_ref().filter(|_| ranks.is_first()) {
        RunDir::vacant(out)?;
    }
    if args.paths.is_empty() {
        for (name, given) in [
            ("--split", args.split.is_some()),
            ("--tokens", args.tokens.is_some()),
        ] {
            if given {
                return Err(Failure::User(format!("{name} is for texts")));
            }
        }
        let mut config = RunConfig::selective_copy();
        apply(args, &mut config)?;
        set_epochs(args, &mut config.training, None, 1)?;
        config.check()?;
        let task = tasks::open(&config)?;
        return Ok(Prepared {
            config,
            task,
            weights: None,
            resumed: None,
        });
    }
    let weights = args.weights.as_ref().map(Published::open).transpose()?;
    let corpus = Corpus::read(&args.paths)?;
    let mut text = TextConfig::describe(args.paths.clone(), &corpus, args.split.unwrap_or(0.9));
    if let Some(kind) = args.tokens {
        text.vocabulary = vocabulary(kind, args.vocabulary.as_deref(), &corpus)?;
    }
    if let Some(weights) = &weights {
        text.vocabulary = Vocabulary::of_model(weights.folder())?;
    }
    let mut config = RunConfig::of_text(text);
    if let Some(weights) = &weights {
        let folder = std::path::absolute(weights.folder())?;
        config.weights = Some(folder.display().to_string());
        config.model = weights.config().clone();
        config.training.lr = FINE_TUNING;
        if let Some(rank) = args.lora {
            let alpha = args.lora_alpha.unwrap_or(rank as f64);
            config.lora = Some(LoraConfig::new(rank, alpha));
            config.training.lr = LORA;
        }
    }
    apply(args, &mut config)?;
    config.check()?;
    let task = open_text(&config, &corpus)?;
    let (items, per_step) = (task.items_per_epoch(), task.items_per_step());
    set_epochs(args, &mut config.training, items, per_step)?;
    Ok(Prepared {
        config,
        task,
        weights,
        resumed: None,
    })
}

/// The run in `--out`, with more steps if asked for. Any other option must be as it was; the same
/// text may have another name.
fn continued(args: &TrainArgs, ranks: &Ranks) -> Result<Prepared, Failure> {
    let dir = ranks.lock(super::folder(args)?)?;
    let before: RunConfig = dir.config()?;
    before.check()?;
    if let Some(kind) = args.model.filter(|kind| *kind != before.model.kind()) {
        return Err(changed(
            &dir,
            "--model",
            before.model.kind().name(),
            kind.name(),
        ));
    }
    let mut config = before.clone();
    // Steps come later and alone: the intervals that suit another number of them would be other options.
    apply(
        &TrainArgs {
            steps: None,
            ..args.clone()
        },
        &mut config,
    )?;
    if let TaskConfig::Text(text) = &mut config.task {
        set(&args.split, &mut text.split);
        if let Some(kind) = args.tokens.filter(|kind| *kind != text.vocabulary.kind()) {
            let before = text.vocabulary.kind().name();
            return Err(changed(&dir, "--tokens", before, kind.name()));
        }
    }
    // The parts of a batch are a matter of memory: they change the numbers within rounding.
    let parts = std::mem::replace(&mut config.training.accumulate, before.training.accumulate);
    refuse_changes(&before, &config, &dir)?;
    config.training.accumulate = parts;
    config.training.steps = args.steps.unwrap_or(config.training.steps);
    if let (TaskConfig::Text(text), Some(file)) = (&mut config.task, &args.vocabulary) {
        text.vocabulary.relocate(file)?;
    }
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
    // A checkpoint has the factors alone.
    let weights = config.weights.as_ref().filter(|_| config.lora.is_some());
    Ok(Prepared {
        weights: weights.map(Published::open).transpose()?,
        config,
        task,
        resumed: Some(dir),
    })
}

/// The refusal of another value of an option in a resumed run.
fn changed(dir: &RunDir, option: &str, before: &str, now: &str) -> Failure {
    Failure::User(format!(
        "{} was begun with {option} {before}, not {now}: a resumed run keeps its options, but for --steps",
        dir.path().display()
    ))
}

/// The symbols that were asked for.
fn vocabulary(
    kind: SymbolKind,
    file: Option<&Path>,
    corpus: &Corpus,
) -> Result<Vocabulary, Failure> {
    Ok(match (kind, file) {
        (SymbolKind::Chars, None) => Vocabulary::chars(corpus.bytes())?,
        (SymbolKind::Bytes, None) => Vocabulary::bytes(),
        (SymbolKind::Bpe, Some(file)) => Vocabulary::bpe(file)?,
        (SymbolKind::Bpe, None) => {
            return Err(Failure::User("--tokens bpe needs a --vocabulary".into()));
        }
        (_, Some(_)) => return Err(Failure::User("--vocabulary is for --tokens bpe".into())),
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
fn apply(args: &TrainArgs, config: &mut RunConfig) -> Result<(), Failure> {
    let training = &mut config.training;
    if let Some(steps) = args.steps {
        training.set_steps(steps);
    }
    set_training(args, training)?;
    set(&args.saved_states, &mut training.saved_states);
    if let TaskConfig::SelectiveCopy(task) = &mut config.task {
        set(&args.data_tokens, &mut task.data_tokens);
    }
    model::apply(args, config)
}

fn describe(config: &RunConfig, task: &dyn TokenTask, device: &str) -> String {
    let (training, model) = (&config.training, &config.model);
    let [_, width, layers] = model.sizes();
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
    let lora = match &config.lora {
        Some(lora) => format!(", LoRA of rank {}", lora.rank),
        None => String::new(),
    };
    format!(
        "task    {what}\nmodel   {}, {} layers of width {}{lora}\ntrain   {} steps of {} sequences, {} on {device}",
        model.kind(),
        layers,
        width,
        training.steps,
        training.batch,
        training.dtype
    )
}

fn conclude(
    out: &mut impl Write,
    config: &RunConfig,
    outcome: &Outcome<AnyLanguageModel>,
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
