//! Options that the tasks without a language model share.

use riverrun_train::{OptimizerKind, RunDir, TrainingConfig};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::session;
use crate::args::TrainArgs;
use crate::failure::Failure;
use crate::ranks::Ranks;

/// The configuration of a new run, or of the one in `--out` with more steps if asked for, and its folder then. `training` is
/// the training's part of a configuration, `apply` sets the task's own options.
pub fn prepare<C: Clone + Serialize + DeserializeOwned>(
    args: &TrainArgs,
    ranks: &Ranks,
    mut new: C,
    training: fn(&mut C) -> &mut TrainingConfig,
    apply: impl Fn(&mut C),
) -> Result<(C, Option<RunDir>), Failure> {
    if !args.resume {
        if let Some(out) = args.out.as_ref().filter(|_| ranks.is_first()) {
            RunDir::vacant(out)?;
        }
        if let Some(steps) = args.steps {
            training(&mut new).set_steps(steps);
        }
        set_training(args, training(&mut new))?;
        apply(&mut new);
        return Ok((new, None));
    }
    let dir = ranks.lock(super::folder(args)?)?;
    let before: C = dir.config()?;
    let mut config = before.clone();
    set_training(args, training(&mut config))?;
    apply(&mut config);
    session::refuse_changes(&before, &config, &dir)?;
    if let Some(steps) = args.steps {
        training(&mut config).steps = steps;
    }
    Ok((config, Some(dir)))
}

/// Puts the options that were given into a training configuration, all but the steps.
///
/// # Errors
/// A momentum for an optimizer that has none.
pub fn set_training(args: &TrainArgs, training: &mut TrainingConfig) -> Result<(), Failure> {
    set(&args.batch, &mut training.batch);
    set(&args.accumulate, &mut training.accumulate);
    set(&args.context, &mut training.context);
    set(&args.lr, &mut training.lr);
    set_intervals(args, training);
    set(&args.schedule, &mut training.schedule);
    set(&args.optimizer, &mut training.optimizer.kind);
    if let Some(momentum) = args.momentum {
        if training.optimizer.kind != OptimizerKind::Sgd {
            return Err(Failure::User("--momentum is for --optimizer sgd".into()));
        }
        training.optimizer.beta_1 = momentum;
    }
    set(&args.weight_decay, &mut training.optimizer.weight_decay);
    set(&args.seed, &mut training.seed);
    set(&args.precision(), &mut training.dtype);
    set(&args.keep, &mut training.keep);
    training.patience = args.patience.or(training.patience);
    training.average = args.average.or(training.average);
    if let Some(hybrid) = args.hybrid() {
        training.hybrid = Some(hybrid);
    }
    Ok(())
}

/// The options that [`TrainingConfig::set_steps`] would set otherwise.
fn set_intervals(args: &TrainArgs, training: &mut TrainingConfig) {
    set(&args.warmup, &mut training.warmup);
    set(&args.eval_every, &mut training.eval_every);
}

/// Lets a new run take as many steps as `--epochs` asks for, where it does. `items` are those of the training data, `per_step` those
/// of a step.
///
/// # Errors
/// Data without an end.
pub fn set_epochs(
    args: &TrainArgs,
    training: &mut TrainingConfig,
    items: Option<usize>,
    per_step: usize,
) -> Result<(), Failure> {
    let Some(epochs) = args.epochs else {
        return Ok(());
    };
    let Some(items) = items else {
        return Err(Failure::User(
            "--epochs is for a text and for images in files: the data of this task are made as it runs".into(),
        ));
    };
    let steps = (epochs * items as f64 / per_step as f64).ceil();
    training.set_steps((steps as u64).max(1));
    set_intervals(args, training);
    Ok(())
}

/// Puts an option that was given in its place.
pub fn set<T: Clone>(given: &Option<T>, place: &mut T) {
    if let Some(given) = given {
        place.clone_from(given);
    }
}

/// Refuses options that were given and that the task has no use for. `used` names those of other tasks that it has.
pub fn refuse_unused(args: &TrainArgs, task: &str, used: &[&str]) -> Result<(), Failure> {
    let given = [
        ("a text", !args.paths.is_empty()),
        ("--model", args.model.is_some()),
        ("--heads", args.heads.is_some()),
        ("--attention-every", args.attention_every.is_some()),
        ("--window", args.window.is_some()),
        ("--layers", args.layers.is_some()),
        ("--width", args.width.is_some()),
        ("--expansion", args.expansion.is_some()),
        ("--time-scale", args.time_scale.is_some()),
        ("--context", args.context.is_some()),
        ("--context-parallel", args.context_parallel.is_some()),
        ("--batch", args.batch.is_some()),
        ("--dropout", args.dropout.is_some()),
        ("--saved-states", args.saved_states.is_some()),
        ("--tokens", args.tokens.is_some()),
        ("--split", args.split.is_some()),
        ("--data-tokens", args.data_tokens.is_some()),
        ("--epochs", args.epochs.is_some()),
        ("--net", args.net.is_some()),
        ("--batch-norm", args.batch_norm),
        ("--data", args.data.is_some()),
    ];
    let unused = |(name, given): &&(&str, bool)| *given && !used.contains(name);
    match given.iter().find(unused) {
        None => Ok(()),
        Some((name, _)) => Err(Failure::User(format!(
            "the task {task} has no use for {name}"
        ))),
    }
}
