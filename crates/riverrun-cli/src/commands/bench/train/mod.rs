//! `riverrun bench train`: whole training steps of language models, on random tokens.
//!
//! A step is timed from the batch on the host to the end of the device's work, as in a loop that reads its loss at every step;
//! its parts in further steps, with a wait after each part. Launches and their times come from further steps again. A model
//! whose loss does not start at that of a random guess, or does not fall, is not timed.

#[cfg(feature = "gpu")]
mod launches;
mod peak_memory;

use std::io::{Write, stdout};
use std::time::Instant;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use riverrun_models::LanguageModelKind;
use riverrun_train::tasks::Batch;
use riverrun_train::{Learner, Part, RunConfig};
use serde::Serialize;

use super::setup::Setup;
use super::stats::{Refused, Timing};
use crate::args::BenchTrainArgs;
use crate::failure::Failure;
use crate::model_shape::ModelShape;
use crate::origin::Origin;
use crate::started;
use peak_memory::{Memory, Meter};

/// The models of the table on a GPU, and on the CPU.
const GPU: &[ModelShape] = &[
    ModelShape::new([256, 4, 64, 256, 65]),
    ModelShape::new([512, 6, 64, 1024, 65]),
    ModelShape::new([768, 12, 16, 1024, 50_257]),
];
const CPU: &[ModelShape] = &[ModelShape::new([128, 3, 16, 256, 65])];

/// Steps before anything is timed.
const WARM_UP: usize = 6;

/// One model.
#[derive(Debug, Serialize)]
struct Measurement {
    #[serde(flatten)]
    shape: ModelShape,
    cell: String,
    dtype: String,
    parameters: usize,
    /// Seconds from the program's start to the end of the first step; of the first model alone that of a fresh start.
    first_step_at: f64,
    /// Seconds of the first step, with all that is compiled and tuned in it.
    first_step: f64,
    step: Timing,
    tokens_per_s: f64,
    /// Seconds until all work was queued.
    host: Timing,
    forward: Timing,
    backward: Timing,
    update: Timing,
    /// Whether steps were recorded and replayed; then there are no parts.
    graph: bool,
    #[serde(flatten)]
    memory: Memory,
    /// Loss of the first step and of the last.
    losses: [f64; 2],
    /// Those of a step that is not recorded.
    #[cfg(feature = "gpu")]
    launches: Option<launches::Launches>,
}

/// The file of `--json`.
#[derive(Debug, Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    origin: Origin,
    rows: Vec<Measurement>,
    /// Models that were refused because their steps were unsteady.
    refused: &'a [String],
}

/// Measures and prints.
pub fn run(args: &BenchTrainArgs) -> Result<(), Failure> {
    let setup = Setup::new(&args.common)?;
    let (device, origin) = (&setup.device, &setup.origin);
    let spec = &origin.device;
    let shapes = match (args.shapes.is_empty(), setup.is_cpu()) {
        (true, true) => CPU.to_vec(),
        (true, false) => GPU.to_vec(),
        _ => args.shapes.clone(),
    };
    let mut out = stdout();
    writeln!(
        out,
        "{} on {spec} ({}), {} timed steps\n{:<22} {:>11} {:>7} {:>9} {:>5} {:>8} {:>9} {:>8} {:>8} {:>9} {:>9}",
        args.model,
        origin.name,
        args.steps,
        "model and batch",
        "ktok/s",
        "ms/step",
        "",
        "host",
        "forward",
        "backward",
        "update",
        "launches",
        "MB",
        "first s"
    )?;
    let mut rows = Vec::new();
    let mut refused = Refused::default();
    for &dtype in &args.dtypes {
        for &shape in &shapes {
            let mut config = RunConfig::selective_copy();
            config.model = shape.model(args.model);
            config.training.dtype = dtype;
            config.check()?;
            let row = Bench::new(config, shape, device, args.graph)?.measure(args)?;
            let name = || format!("{} {dtype} {shape}", args.model);
            if refused.admits(name, &row.step) {
                print(&mut out, &row, args.kernels)?;
                rows.push(row);
            }
        }
    }
    match &args.common.json {
        Some(path) => {
            let report = Report {
                rows,
                refused: refused.names(),
                origin: setup.origin,
            };
            super::write_json(path, &report)
        }
        None => Ok(()),
    }
}

fn print(out: &mut impl Write, row: &Measurement, kernels: usize) -> Result<(), Failure> {
    #[cfg(feature = "gpu")]
    let launches = row.launches.as_ref().map(|l| l.per_step.to_string());
    #[cfg(not(feature = "gpu"))]
    let (launches, _) = (None::<String>, kernels);
    let ms = |timing: &Timing| timing.median * 1e3;
    writeln!(
        out,
        "{:<17} {:>4} {:>11.1} {:>7.2} {:>8.1}% {:>5.1} {:>8.2} {:>9.2} {:>8.2} {:>8} {:>9} {:>9.1}",
        row.shape.to_string(),
        row.dtype,
        row.tokens_per_s / 1e3,
        ms(&row.step),
        row.step.spread() * 100.0,
        ms(&row.host),
        ms(&row.forward),
        ms(&row.backward),
        ms(&row.update),
        launches.unwrap_or_else(|| "-".into()),
        row.memory,
        row.first_step_at
    )?;
    #[cfg(feature = "gpu")]
    if let Some(launches) = &row.launches {
        launches.print(out, kernels)?;
    }
    Ok(())
}

/// A model with its batch.
struct Bench {
    learner: Learner,
    batch: Batch,
    shape: ModelShape,
    config: RunConfig,
    device: Device,
    memory: Meter,
}

impl Bench {
    fn new(
        config: RunConfig,
        shape: ModelShape,
        device: &Device,
        graph: bool,
    ) -> Result<Self, Failure> {
        let memory = Meter::new(device);
        let mut learner = Learner::language(&config, device)?;
        if graph {
            learner.record_steps()?;
        }
        Ok(Self {
            learner,
            batch: shape.batch(11),
            shape,
            config,
            device: device.clone(),
            memory,
        })
    }

    fn sync(&self) -> Result<(), Failure> {
        self.device.sync().map_err(failed)
    }

    /// One step, without waiting for it.
    fn step(&mut self, done: &mut dyn FnMut(Part)) -> Result<Tensor<1>, Failure> {
        // So large that the loss falls within a few steps, so small that it does not rise again.
        Ok(self.learner.step(&self.batch, 1e-3, done)?)
    }

    fn loss(&mut self) -> Result<f64, Failure> {
        let loss = self.step(&mut |_| ())?;
        loss.try_into_scalar::<f64>().map_err(failed)
    }

    fn measure(mut self, args: &BenchTrainArgs) -> Result<Measurement, Failure> {
        let start = Instant::now();
        let first = self.loss()?;
        let (first_step, first_step_at) = (start.elapsed().as_secs_f64(), started().as_secs_f64());
        for _ in 1..WARM_UP {
            self.step(&mut |_| ())?;
        }
        self.sync()?;
        let (mut steps, mut host) = (Vec::new(), Vec::new());
        for _ in 0..args.steps {
            let start = Instant::now();
            let loss = self.step(&mut |_| ())?;
            host.push(start.elapsed().as_secs_f64());
            self.sync()?;
            steps.push(start.elapsed().as_secs_f64());
            drop(loss);
        }
        let memory = self.memory.read();
        let [forward, backward, update] = self.parts(args.steps)?;
        let last = self.loss()?;
        self.learned(args.model, first, last)?;
        let step = Timing::of(steps);
        Ok(Measurement {
            shape: self.shape,
            cell: args.model.to_string(),
            dtype: self.config.training.dtype.to_string(),
            parameters: self.learner.model().num_params(),
            first_step_at,
            first_step,
            step,
            tokens_per_s: self.shape.tokens() as f64 / step.median,
            host: Timing::of(host),
            forward,
            backward,
            update,
            graph: args.graph,
            memory,
            losses: [first, last],
            #[cfg(feature = "gpu")]
            launches: self.launches(args)?,
        })
    }

    /// Seconds of the parts, each with the wait for its end.
    fn parts(&mut self, steps: usize) -> Result<[Timing; 3], Failure> {
        let mut parts: [Vec<f64>; 3] = Default::default();
        for _ in 0..steps {
            let device = self.device.clone();
            let (mut last, mut fault) = (Instant::now(), None);
            let loss = self.step(&mut |part| {
                fault = fault.take().or(device.sync().err());
                parts[part as usize].push(last.elapsed().as_secs_f64());
                last = Instant::now();
            })?;
            drop(loss);
            if let Some(error) = fault {
                return Err(failed(error));
            }
        }
        Ok(parts.map(Timing::of))
    }

    /// The launches of a step. The kernels of a recorded one cannot be told apart: where they are wanted, those of the same
    /// model without a recording.
    #[cfg(feature = "gpu")]
    fn launches(mut self, args: &BenchTrainArgs) -> Result<Option<launches::Launches>, Failure> {
        let timed = args.kernels > 0;
        if riverrun::device::is_cpu(&self.device) || args.graph && !timed {
            return Ok(None);
        }
        if args.graph {
            self = self.without_recording()?;
        }
        let device = self.device.clone();
        let sync = || device.sync().map_err(failed);
        launches::observe(timed, sync, || self.step(&mut |_| ()).map(drop)).map(Some)
    }

    /// The same model from its start, after a few steps. The memory of the recording is free by then.
    #[cfg(feature = "gpu")]
    fn without_recording(self) -> Result<Self, Failure> {
        let Self {
            learner,
            config,
            shape,
            device,
            ..
        } = self;
        drop(learner);
        let mut other = Self::new(config, shape, &device, false)?;
        for _ in 0..2 {
            other.step(&mut |_| ())?;
        }
        other.sync()?;
        Ok(other)
    }

    /// Random tokens cost `ln V` to guess, and a batch seen again and again is soon learned in part. Griffin starts higher:
    /// its output has the embedding's weights, scaled to `√width` at the input, so that it first expects the token that it
    /// has just read.
    fn learned(&self, model: LanguageModelKind, first: f64, last: f64) -> Result<(), Failure> {
        let guess = (self.shape.vocab as f64).ln();
        let above = match model {
            LanguageModelKind::Griffin => (self.shape.width as f64).sqrt(),
            _ => 0.2 * guess,
        };
        if first > 0.8 * guess && first < guess + above && last < first {
            return Ok(());
        }
        Err(Failure::Bug(format!(
            "{}: the loss went from {first:.4} to {last:.4}; a model that learns starts near {guess:.4} and falls",
            self.shape
        )))
    }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Bug(format!("the device failed: {error}"))
}
