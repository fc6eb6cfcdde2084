//! `riverrun bench hybrid`: hybrid training beside plain training, by the time to an equal validation loss.

mod claims;
mod latency;
mod rungs;
mod table;
mod watch;

use std::path::PathBuf;
use std::time::Instant;

use clap::ValueEnum;
use riverrun_train::hybrid::{HybridConfig, Parts, PredictorKind, Status};
use serde::Serialize;

use super::report::Report;
use crate::args::hybrid::{HybridArgs, PredictorChoice};
use crate::failure::Failure;
use watch::PARTS;

/// Options of `riverrun bench hybrid`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Examples:\n  riverrun bench hybrid --all --device cpu --hybrid balanced --text shakespeare.txt --report hybrid.txt --json hybrid.json\n  riverrun bench hybrid --device cpu --predictors linear,last-update --rungs digits\n  riverrun bench hybrid --ablate --hybrid aggressive --rungs xor\n  riverrun bench hybrid --latency"
)]
pub struct Args {
    /// Hybrid training
    #[command(flatten)]
    hybrid: HybridArgs,
    /// Predictors, separated by commas, by their names or as files of `riverrun hybrid learn`; plain training is always measured
    /// [default: all; with --ablate linear]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = PredictorChoice::parse)]
    predictors: Vec<PredictorChoice>,
    /// Measure the table of all rungs, an ablation of the linear predictor on xor and text, and the latencies, one after
    /// another: about eight minutes on two CPU cores
    #[arg(long, conflicts_with_all = ["ablate", "latency"])]
    all: bool,
    /// Write what is printed here too, under the command, the commit and the machine
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Measure each predictor with every part of the method on, and with each one off
    #[arg(long, conflicts_with = "latency")]
    ablate: bool,
    /// Measure the microseconds of each piece of the method instead: features, decision, rollout, applied change
    #[arg(long)]
    latency: bool,
    /// Tasks, separated by commas [default: xor and digits, and text where --text is given; with --all all three]
    #[arg(long, value_name = "RUNGS", value_delimiter = ',', value_enum)]
    rungs: Vec<Rung>,
    /// Text of the rung text
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Folder with MNIST's files for the rung digits [default: drawn digits]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Steps of each run [default: 500 of xor, 300 of digits, 800 of text]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Runs of each, with seeds from 0
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
}

/// A task to measure hybrid training on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Rung {
    /// The exclusive or of two bits
    Xor,
    /// Digits by convolution
    Digits,
    /// Characters of a text, by two layers of minGRU of width 64
    Text,
}

impl Args {
    /// The tasks to measure.
    fn rungs(&self) -> Vec<Rung> {
        match self.rungs.as_slice() {
            [] if self.all || self.text.is_some() => vec![Rung::Xor, Rung::Digits, Rung::Text],
            [] => vec![Rung::Xor, Rung::Digits],
            chosen => chosen.to_vec(),
        }
    }
}

impl Rung {
    /// The steps of a run, few enough that all rungs are measured in minutes.
    fn steps(self) -> u64 {
        match self {
            Self::Xor => 500,
            Self::Digits => 300,
            Self::Text => 800,
        }
    }

    /// The name on the command line.
    fn name(self) -> &'static str {
        match self {
            Self::Xor => "xor",
            Self::Digits => "digits",
            Self::Text => "text",
        }
    }
}

/// One run.
#[derive(Debug, Serialize)]
struct Run {
    seed: u64,
    /// Time spent on training: without evaluations, checkpoints and pictures.
    seconds: f64,
    /// The last validation.
    loss: f64,
    accuracy: Option<f64>,
    hybrid: Option<Status>,
    /// Seconds in predictions, and in the real steps that measure them.
    predicting: f64,
    /// Seconds to the validation losses that plain training has at [`PARTS`] of its run; null where they are not reached.
    to: [Option<f64>; 3],
}

/// The runs of one method on one task.
#[derive(Debug)]
struct Runs {
    rung: &'static str,
    method: Method,
    steps: u64,
    runs: Vec<Run>,
}

/// Plain training, or hybrid training with some settings.
#[derive(Debug, Clone)]
struct Method {
    /// The predictor, or `plain`.
    predictor: String,
    /// The part that an ablation has switched off.
    without: Option<&'static str>,
    settings: Option<HybridConfig>,
}

impl Method {
    fn name(&self) -> String {
        match self.without {
            Some(part) => format!("{}, no {part}", self.predictor),
            None => self.predictor.clone(),
        }
    }
}

/// Measures what was asked for.
pub fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let rungs = args.rungs();
    if rungs.contains(&Rung::Text) && args.text.is_none() && !args.latency {
        return Err(Failure::User("the rung text needs --text".into()));
    }
    if let Some(path) = &args.report {
        report.echo(path)?;
    }
    report.fact("parts", PARTS);
    if !args.latency && !args.ablate {
        report.table("rows");
        let found = tables(args, &rungs, false, report)?;
        report.line(table::COLUMNS)?;
        claims::add(report, &found)?;
    }
    if args.all || args.ablate {
        // With everything else, the two rungs are enough on which most is predicted.
        let few = |rung: &&Rung| args.ablate || **rung != Rung::Digits;
        let rungs: Vec<Rung> = rungs.iter().filter(few).copied().collect();
        report.line("\nWith all parts, and without each:")?;
        report.table("ablation");
        tables(args, &rungs, true, report)?;
        report.line(table::COLUMNS)?;
    }
    if args.all || args.latency {
        report.line("\nPieces of the method:")?;
        report.table("latencies");
        latency::run(report)?;
    }
    Ok(())
}

/// The runs on several rungs, printed rung by rung.
fn tables(
    args: &Args,
    rungs: &[Rung],
    ablate: bool,
    report: &mut Report,
) -> Result<Vec<Runs>, Failure> {
    let methods = methods(args, ablate);
    let mut all = Vec::new();
    for rung in rungs {
        let found = measure(args, report, *rung, &methods)?;
        for runs in &found {
            report.add(table::row(runs, &found[0]))?;
        }
        all.extend(found);
    }
    Ok(all)
}

/// Plain training, and every predictor as configured; in an ablation, every predictor with all parts, and without each.
fn methods(args: &Args, ablate: bool) -> Vec<Method> {
    let settings = args.hybrid.config().unwrap_or_default();
    let named = |kinds: &[PredictorKind]| -> Vec<PredictorChoice> {
        kinds.iter().copied().map(PredictorChoice::Kind).collect()
    };
    let predictors = match (args.predictors.as_slice(), ablate) {
        ([], false) => named(&PredictorKind::ALL),
        ([], true) => named(&[PredictorKind::Linear]),
        (_, true) if args.all => named(&[PredictorKind::Linear]),
        (chosen, _) => chosen.to_vec(),
    };
    let parts = |kind: PredictorKind| -> Vec<(Option<&'static str>, Parts)> {
        let whole = (None, settings.parts);
        // A predictor that learns is measured by itself too, however large its error is.
        let mut alone = settings.parts;
        alone.fallback = false;
        match ablate {
            false if kind.learns() && settings.parts.fallback => {
                return vec![whole, (Some("fallback"), alone)];
            }
            false => return vec![whole],
            true => {}
        }
        {
            let mut all = Parts::all();
            all.check = settings.parts.check;
            let without = |name: &&'static str| Some((Some(*name), all.without(name).ok()?));
            let each = Parts::NAMES.iter().filter_map(without);
            [(None, all)].into_iter().chain(each).collect()
        }
    };
    let mut methods = vec![Method {
        predictor: "plain".into(),
        without: None,
        settings: None,
    }];
    for predictor in predictors {
        let mut settings = settings.clone();
        predictor.set(&mut settings);
        let name = match &predictor {
            PredictorChoice::Kind(kind) => kind.to_string(),
            PredictorChoice::Taught(_) => "taught ensemble".into(),
        };
        for (without, parts) in parts(settings.predictor) {
            let mut settings = settings.clone();
            settings.parts = parts;
            methods.push(Method {
                predictor: name.clone(),
                without,
                settings: Some(settings),
            });
        }
    }
    methods
}

/// Seed by seed, all methods in turns, so that a change of the machine's speed meets all.
fn measure(
    args: &Args,
    report: &Report,
    rung: Rung,
    methods: &[Method],
) -> Result<Vec<Runs>, Failure> {
    let mut rows: Vec<Runs> = Vec::new();
    let (start, runs) = (Instant::now(), args.seeds * methods.len() as u64);
    let mut done = 0;
    for seed in 0..args.seeds {
        let mut targets = None;
        for (n, method) in methods.iter().enumerate() {
            let hybrid = method.settings.as_ref();
            let found = rungs::train(args, &report.device, rung, seed, hybrid)?;
            done += 1;
            let seconds = start.elapsed().as_secs_f64();
            let left = seconds / done as f64 * (runs - done) as f64;
            let (rung, name) = (rung.name(), method.name());
            eprintln!("{rung}, seed {seed}, {name}: {done} of {runs} runs, {left:.0} s left");
            let watch = found.watch;
            let targets = targets.get_or_insert_with(|| watch.targets(found.steps));
            let last = watch.evaluations.last();
            let last = last.ok_or_else(|| Failure::Bug("a run without evaluations".into()))?;
            if n == rows.len() {
                rows.push(Runs {
                    rung,
                    method: method.clone(),
                    steps: found.steps,
                    runs: Vec::new(),
                });
            }
            rows[n].runs.push(Run {
                seed,
                seconds: last.seconds,
                loss: last.loss,
                accuracy: last.accuracy,
                hybrid: found.hybrid,
                predicting: found.predicting,
                to: targets.map(|target| watch.time_to(target)),
            });
        }
    }
    Ok(rows)
}
