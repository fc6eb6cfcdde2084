//! `riverrun bench hybrid`: hybrid training beside plain training, by the time to an equal validation loss.

mod latency;
mod rungs;
mod table;
mod watch;

use std::io::stdout;

use riverrun_train::hybrid::{HybridConfig, Parts, PredictorKind, Status};
use serde::Serialize;

use super::setup::Setup as Machine;
use crate::args::{BenchHybridArgs, Rung};
use crate::failure::Failure;
use crate::origin::Origin;
use watch::PARTS;

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
    /// Seconds to the validation losses that plain training has at [`PARTS`] of its run; null where they are not reached.
    to: [Option<f64>; 3],
}

/// The runs of one method on one task.
#[derive(Debug, Serialize)]
struct Row {
    rung: &'static str,
    #[serde(flatten)]
    method: Method,
    steps: u64,
    runs: Vec<Run>,
}

/// Plain training, or hybrid training with some settings.
#[derive(Debug, Clone, Serialize)]
struct Method {
    /// The predictor, or `plain`.
    predictor: String,
    /// The part that an ablation has switched off.
    without: Option<&'static str>,
    settings: Option<HybridConfig>,
}

#[derive(Debug, Serialize)]
struct Results {
    #[serde(flatten)]
    origin: Origin,
    parts: [u64; 3],
    rows: Vec<Row>,
}

/// Runs every rung that was asked for.
pub fn run(args: &BenchHybridArgs) -> Result<(), Failure> {
    let machine = Machine::new(&args.common)?;
    if args.latency {
        return latency::run(args, machine);
    }
    let methods = methods(args);
    let mut out = stdout().lock();
    let mut rows = Vec::new();
    for rung in &args.rungs {
        let found = measure(args, &machine, *rung, &methods)?;
        table::print(&mut out, &found)?;
        rows.extend(found);
    }
    table::print_claims(&mut out)?;
    let Some(path) = &args.common.json else {
        return Ok(());
    };
    let results = Results {
        origin: machine.origin,
        parts: PARTS,
        rows,
    };
    super::write_json(path, &results)
}

/// Plain training, and every predictor as configured; in an ablation, every predictor with all parts, and without each.
fn methods(args: &BenchHybridArgs) -> Vec<Method> {
    let settings = args.hybrid.config().unwrap_or_default();
    let predictors = match (args.predictors.as_slice(), args.ablate) {
        ([], false) => PredictorKind::ALL.to_vec(),
        ([], true) => vec![PredictorKind::Linear],
        (chosen, _) => chosen.to_vec(),
    };
    let parts: Vec<(Option<&'static str>, Parts)> = match args.ablate {
        false => vec![(None, settings.parts)],
        true => {
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
        for (without, parts) in &parts {
            let mut settings = settings.clone();
            (settings.predictor, settings.parts) = (predictor, *parts);
            methods.push(Method {
                predictor: predictor.to_string(),
                without: *without,
                settings: Some(settings),
            });
        }
    }
    methods
}

/// Seed by seed, all methods in turns, so that a change of the machine's speed meets all.
fn measure(
    args: &BenchHybridArgs,
    machine: &Machine,
    rung: Rung,
    methods: &[Method],
) -> Result<Vec<Row>, Failure> {
    let mut rows: Vec<Row> = Vec::new();
    for seed in 0..args.seeds {
        let mut targets = None;
        for (n, method) in methods.iter().enumerate() {
            let hybrid = method.settings.as_ref();
            let found = rungs::train(args, &machine.device, rung, seed, hybrid)?;
            let watch = found.watch;
            let targets = targets.get_or_insert_with(|| watch.targets(found.steps));
            let last = watch.evaluations.last();
            let last = last.ok_or_else(|| Failure::Bug("a run without evaluations".into()))?;
            if n == rows.len() {
                rows.push(Row {
                    rung: rung.name(),
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
                to: targets.map(|target| watch.time_to(target)),
            });
        }
    }
    Ok(rows)
}
