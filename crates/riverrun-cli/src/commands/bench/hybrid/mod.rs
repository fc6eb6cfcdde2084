//! `riverrun bench hybrid`: hybrid training beside plain training, by the time to an equal validation loss.

mod claims;
mod latency;
mod rungs;
mod table;
mod watch;

use std::fs::File;
use std::io::{self, Stdout, Write, stdout};
use std::path::PathBuf;
use std::time::Instant;

use riverrun_train::hybrid::{HybridConfig, Parts, PredictorKind, Status};
use serde::Serialize;

use super::setup::Setup as Machine;
use crate::args::{BenchHybridArgs, Rung};
use crate::failure::Failure;
use crate::origin::Origin;
use latency::Latencies;
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

impl Method {
    fn name(&self) -> String {
        match self.without {
            Some(part) => format!("{}, no {part}", self.predictor),
            None => self.predictor.clone(),
        }
    }
}

#[derive(Debug, Serialize)]
struct Results {
    #[serde(flatten)]
    origin: Origin,
    parts: [u64; 3],
    rows: Vec<Row>,
    /// One predictor with all parts, and without each.
    ablation: Vec<Row>,
    latencies: Option<Latencies>,
}

/// Standard output, and the file of the report.
struct Report(Stdout, Option<File>);

impl Write for Report {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(file) = &mut self.1 {
            file.write_all(bytes)?;
        }
        self.0.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Measures what was asked for.
pub fn run(args: &BenchHybridArgs) -> Result<(), Failure> {
    let machine = Machine::new(&args.common)?;
    let rungs = args.rungs();
    if rungs.contains(&Rung::Text) && args.text.is_none() && !args.latency {
        return Err(Failure::User("the rung text needs --text".into()));
    }
    let create = |path: &PathBuf| {
        let file = File::create(path);
        file.map_err(|error| Failure::User(format!("{}: {error}", path.display())))
    };
    let file = args.report.as_ref().map(create).transpose()?;
    let mut out = Report(stdout(), file);
    writeln!(out, "{}", machine.origin.heading())?;
    let mut results = Results {
        origin: machine.origin.clone(),
        parts: PARTS,
        rows: Vec::new(),
        ablation: Vec::new(),
        latencies: None,
    };
    if !args.latency && !args.ablate {
        results.rows = tables(args, &machine, &rungs, false, &mut out)?;
        table::print_columns(&mut out)?;
        claims::print(&mut out, &results.rows)?;
    }
    if args.all || args.ablate {
        // With everything else, the two rungs are enough on which most is predicted.
        let few = |rung: &&Rung| args.ablate || **rung != Rung::Digits;
        let rungs: Vec<Rung> = rungs.iter().filter(few).copied().collect();
        writeln!(out, "\nWith all parts, and without each:")?;
        results.ablation = tables(args, &machine, &rungs, true, &mut out)?;
        table::print_columns(&mut out)?;
    }
    if args.all || args.latency {
        writeln!(out, "\nPieces of the method:")?;
        results.latencies = Some(latency::run(&mut out, &machine)?);
    }
    match &args.common.json {
        Some(path) => super::write_json(path, &results),
        None => Ok(()),
    }
}

/// The rows of several rungs, printed rung by rung.
fn tables(
    args: &BenchHybridArgs,
    machine: &Machine,
    rungs: &[Rung],
    ablate: bool,
    out: &mut Report,
) -> Result<Vec<Row>, Failure> {
    let methods = methods(args, ablate);
    let mut rows = Vec::new();
    for rung in rungs {
        let found = measure(args, machine, *rung, &methods)?;
        table::print(out, &found)?;
        rows.extend(found);
    }
    Ok(rows)
}

/// Plain training, and every predictor as configured; in an ablation, every predictor with all parts, and without each.
fn methods(args: &BenchHybridArgs, ablate: bool) -> Vec<Method> {
    let settings = args.hybrid.config().unwrap_or_default();
    let predictors = match (args.predictors.as_slice(), ablate) {
        ([], false) => PredictorKind::ALL.to_vec(),
        ([], true) => vec![PredictorKind::Linear],
        (_, true) if args.all => vec![PredictorKind::Linear],
        (chosen, _) => chosen.to_vec(),
    };
    let parts: Vec<(Option<&'static str>, Parts)> = match ablate {
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
    let (start, runs) = (Instant::now(), args.seeds * methods.len() as u64);
    let mut done = 0;
    for seed in 0..args.seeds {
        let mut targets = None;
        for (n, method) in methods.iter().enumerate() {
            let hybrid = method.settings.as_ref();
            let found = rungs::train(args, &machine.device, rung, seed, hybrid)?;
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
                rows.push(Row {
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
                to: targets.map(|target| watch.time_to(target)),
            });
        }
    }
    Ok(rows)
}
