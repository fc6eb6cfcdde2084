//! The exclusive or of two bits.

use std::io::{Write, stdout};

use riverrun_train::RunDir;
use riverrun_train::tasks::XorConfig;

use super::session;
use crate::args::TrainArgs;
use crate::failure::Failure;

pub fn run(args: &TrainArgs, quiet: bool) -> Result<(), Failure> {
    refuse_unused(args)?;
    let device = riverrun::device::parse(&args.device)?;
    let (config, resumed) = match args.resume {
        true => {
            let dir = super::folder(args)?.lock()?;
            let before: XorConfig = dir.config()?;
            let mut config = before.clone();
            let steps = args.steps.unwrap_or(before.training.steps);
            apply(args, &mut config);
            config.training.steps = before.training.steps;
            session::refuse_changes(&before, &config, &dir)?;
            config.training.steps = steps;
            (config, Some(dir))
        }
        false => {
            if let Some(out) = &args.out {
                RunDir::vacant(out)?;
            }
            let mut config = XorConfig::new();
            if let Some(steps) = args.steps {
                config.training.set_steps(steps);
            }
            apply(args, &mut config);
            (config, None)
        }
    };
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
    let (outcome, dir) = session::train(args, quiet, &device, setup, resumed, &what, &mut out)?;
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

fn apply(args: &TrainArgs, config: &mut XorConfig) {
    let training = &mut config.training;
    training.lr = args.lr.unwrap_or(training.lr);
    training.warmup = args.warmup.unwrap_or(training.warmup);
    training.seed = args.seed.unwrap_or(training.seed);
    training.dtype = args.dtype.unwrap_or(training.dtype);
    training.accumulate = args.accumulate.unwrap_or(training.accumulate);
    training.eval_every = args.eval_every.unwrap_or(training.eval_every);
    let decay = &mut training.optimizer.weight_decay;
    *decay = args.weight_decay.unwrap_or(*decay);
    config.hidden = args.width.unwrap_or(config.hidden);
}

/// Refuses options that the task has no use for.
fn refuse_unused(args: &TrainArgs) -> Result<(), Failure> {
    let given = [
        ("a text", !args.paths.is_empty()),
        ("--model", args.model.is_some()),
        ("--layers", args.layers.is_some()),
        ("--expansion", args.expansion.is_some()),
        ("--time-scale", args.time_scale.is_some()),
        ("--context", args.context.is_some()),
        ("--batch", args.batch.is_some()),
        ("--dropout", args.dropout.is_some()),
        ("--recompute", args.recompute.is_some()),
        ("--split", args.split.is_some()),
        ("--data-tokens", args.data_tokens.is_some()),
    ];
    match given.iter().find(|(_, given)| *given) {
        None => Ok(()),
        Some((name, _)) => Err(Failure::User(format!("the task xor has no use for {name}"))),
    }
}
