//! `riverrun bench hybrid`: hybrid training beside plain training, by the time to an equal validation loss.

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use burn::tensor::Device;
use riverrun::models::{LanguageModelConfig, RecurrentKind};
use riverrun_train::hybrid::{HybridConfig, PredictorKind, Status};
use riverrun_train::tasks::{self, Corpus, DigitsRun, XorConfig};
use riverrun_train::{
    DigitsNet, Objective, Observer, Report, RunConfig, RunDir, Setup, Split, Trainer,
    TrainingConfig,
};
use serde::Serialize;

use super::setup::Setup as Machine;
use crate::args::{BenchHybridArgs, Rung};
use crate::failure::Failure;
use crate::origin::Origin;

/// Evaluations of a run: the grain of the times to a loss.
const EVALUATIONS: u64 = 50;
/// Parts of a plain run whose losses are the targets.
const PARTS: [u64; 3] = [50, 75, 100];

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

/// The runs of one predictor, or of plain training.
#[derive(Debug, Serialize)]
struct Row {
    rung: &'static str,
    predictor: String,
    steps: u64,
    runs: Vec<Run>,
}

#[derive(Debug, Serialize)]
struct Results {
    #[serde(flatten)]
    origin: Origin,
    settings: HybridConfig,
    parts: [u64; 3],
    rows: Vec<Row>,
}

/// Runs every rung that was asked for.
pub fn run(args: &BenchHybridArgs) -> Result<(), Failure> {
    let machine = Machine::new(&args.common)?;
    let settings = args.hybrid.config().unwrap_or_default();
    let mut predictors = vec![None];
    predictors.extend(args.predictors.iter().copied().map(Some));
    let mut out = stdout().lock();
    let mut rows = Vec::new();
    for rung in &args.rungs {
        let bench = Bench {
            args,
            rung: *rung,
            device: &machine.device,
            settings: &settings,
        };
        let found = bench.rows(&predictors)?;
        print(&mut out, &found)?;
        rows.extend(found);
    }
    let Some(path) = &args.common.json else {
        return Ok(());
    };
    let results = Results {
        origin: machine.origin,
        settings,
        parts: PARTS,
        rows,
    };
    super::write_json(path, &results)
}

struct Bench<'a> {
    args: &'a BenchHybridArgs,
    rung: Rung,
    device: &'a Device,
    settings: &'a HybridConfig,
}

impl Bench<'_> {
    /// Seed by seed, all predictors in turns, so that a change of the machine's speed meets all.
    fn rows(&self, predictors: &[Option<PredictorKind>]) -> Result<Vec<Row>, Failure> {
        let name = |kind: &Option<PredictorKind>| match kind {
            None => "plain".to_string(),
            Some(kind) => kind.to_string(),
        };
        let mut rows: Vec<Row> = Vec::new();
        for seed in 0..self.args.seeds {
            let mut targets = None;
            for (n, kind) in predictors.iter().enumerate() {
                let (steps, watch, status) = self.run(seed, *kind)?;
                let targets = targets.get_or_insert_with(|| watch.targets(steps));
                let last = watch.evaluations.last();
                let last = last.ok_or_else(|| Failure::Bug("a run without evaluations".into()))?;
                if n == rows.len() {
                    rows.push(Row {
                        rung: self.rung.name(),
                        predictor: name(kind),
                        steps,
                        runs: Vec::new(),
                    });
                }
                rows[n].runs.push(Run {
                    seed,
                    seconds: last.seconds,
                    loss: last.loss,
                    accuracy: last.accuracy,
                    hybrid: status,
                    to: targets.map(|target| watch.time_to(target)),
                });
            }
        }
        Ok(rows)
    }

    fn run(
        &self,
        seed: u64,
        kind: Option<PredictorKind>,
    ) -> Result<(u64, Watch, Option<Status>), Failure> {
        let prepare = |training: &mut TrainingConfig| {
            if let Some(steps) = self.args.steps {
                training.set_steps(steps);
            }
            training.seed = seed;
            training.eval_every = (training.steps / EVALUATIONS).max(1);
            training.hybrid = kind.map(|predictor| {
                let mut settings = self.settings.clone();
                settings.predictor = predictor;
                settings
            });
            training.steps
        };
        match self.rung {
            Rung::Xor => {
                let mut config = XorConfig::new();
                let steps = prepare(&mut config.training);
                self.train(config.setup()?, steps)
            }
            Rung::Digits => {
                let mut config = DigitsRun::new(DigitsNet::Conv);
                config.data.folder.clone_from(&self.args.data);
                let steps = prepare(&mut config.training);
                self.train(config.setup()?, steps)
            }
            Rung::Text => {
                let path = self.args.text.as_ref();
                let path =
                    path.ok_or_else(|| Failure::User("the rung text needs --text".into()))?;
                let sources = vec![path.display().to_string()];
                let corpus = Corpus::read(&sources)?;
                // Few validation symbols: there are many evaluations.
                let mut config = RunConfig::text(sources, &corpus, 0.99);
                config.model = LanguageModelConfig::new(config.model.vocab, 64, 2)
                    .with_cell(RecurrentKind::MinGru);
                config.training = TrainingConfig::new(8, 64, 1000, 4e-3);
                let steps = prepare(&mut config.training);
                self.train(Setup::language(&config, tasks::open(&config)?)?, steps)
            }
        }
    }

    fn train<O: Objective>(
        &self,
        setup: Setup<O>,
        steps: u64,
    ) -> Result<(u64, Watch, Option<Status>), Failure> {
        let scratch = Scratch::new();
        let dir = RunDir::create(&scratch.0)?;
        let trainer = Trainer::create(setup, dir, self.device)?;
        let mut watch = Watch::default();
        let outcome = trainer.run(&mut watch, &AtomicBool::new(false))?;
        Ok((steps, watch, outcome.hybrid))
    }
}

/// Evaluations, with the time that training has taken until then.
#[derive(Debug, Default)]
struct Watch {
    start: Option<Instant>,
    /// Time that was not training.
    excluded: f64,
    /// When training last paused.
    paused: Option<Instant>,
    evaluations: Vec<Evaluation>,
}

#[derive(Debug)]
struct Evaluation {
    step: u64,
    seconds: f64,
    loss: f64,
    accuracy: Option<f64>,
}

impl Watch {
    /// The validation losses at the parts of a plain run.
    fn targets(&self, steps: u64) -> [f64; 3] {
        PARTS.map(|part| {
            let until = |evaluation: &&Evaluation| evaluation.step <= steps * part / 100;
            let last = self.evaluations.iter().take_while(until).last();
            last.map_or(f64::NEG_INFINITY, |evaluation| evaluation.loss)
        })
    }

    fn time_to(&self, target: f64) -> Option<f64> {
        let reached = |evaluation: &&Evaluation| evaluation.loss <= target;
        let first = self.evaluations.iter().find(reached)?;
        Some(first.seconds)
    }
}

impl Observer for Watch {
    fn begin(&mut self, _: &riverrun_train::Plan) {
        self.start = Some(Instant::now());
    }

    fn report(&mut self, report: &Report) {
        if report.split == Split::Train {
            self.paused = Some(Instant::now());
        } else if let (Some(start), Some(paused)) = (self.start, self.paused) {
            self.evaluations.push(Evaluation {
                step: report.step,
                seconds: (paused - start).as_secs_f64() - self.excluded,
                loss: report.loss,
                accuracy: report.accuracy,
            });
        }
    }

    fn saved(&mut self, _: u64) {
        if let Some(paused) = self.paused {
            self.excluded += paused.elapsed().as_secs_f64();
        }
    }
}

/// The folder of one run, which goes away with it.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("riverrun-bench-hybrid-{}-{count}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The middle of three or more; where fewer than half of the runs got there, none.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn print(out: &mut impl Write, rows: &[Row]) -> Result<(), Failure> {
    let seconds = |seconds: f64| match seconds.is_finite() {
        true => format!("{seconds:.2}"),
        false => "-".to_string(),
    };
    writeln!(
        out,
        "{:<7} {:<12} {:>6} {:>9} {:>10}  {:>16}  {:>8}  {:>7} {:>7} {:>7}  (seconds to the loss of plain training at 50, 75, 100 %)",
        "rung",
        "predictor",
        "real",
        "predicted",
        "taken back",
        "seconds (range)",
        "loss",
        "50 %",
        "75 %",
        "100 %"
    )?;
    for row in rows {
        let counts = |run: &Run| run.hybrid.as_ref().map(|status| status.counts);
        let over = |value: &dyn Fn(&Run) -> f64| median(row.runs.iter().map(value));
        let real = over(&|run| counts(run).map_or(row.steps as f64, |counts| counts.real as f64));
        let predicted = over(&|run| counts(run).map_or(0.0, |counts| counts.predicted as f64));
        let back = over(&|run| counts(run).map_or(0.0, |counts| counts.taken_back as f64));
        let all = || row.runs.iter().map(|run| run.seconds);
        let range = (
            all().fold(f64::INFINITY, f64::min),
            all().fold(0.0, f64::max),
        );
        let to = |n: usize| seconds(over(&|run| run.to[n].unwrap_or(f64::INFINITY)));
        writeln!(
            out,
            "{:<7} {:<12} {real:>6} {predicted:>9} {back:>10}  {:>5.2} ({:.2}-{:.2})  {:>8.4}  {:>7} {:>7} {:>7}",
            row.rung,
            row.predictor,
            over(&|run| run.seconds),
            range.0,
            range.1,
            over(&|run| run.loss),
            to(0),
            to(1),
            to(2)
        )?;
    }
    Ok(())
}
