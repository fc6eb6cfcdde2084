//! `riverrun bench train`: whole training steps of language models, on random tokens.
//!
//! A step is timed from the batch on the host to the end of the device's work, as in a loop that reads its loss at every step;
//! its parts in further steps, with a wait after each part. Launches and their times come from further steps again. A model
//! whose loss does not start at that of a random guess, or does not fall, is not timed.
//!
//! On several ranks, the time between ranks is that of a step's sums by themselves, one after another without a wait. In a step
//! they wait for the slowest rank too.

#[cfg(feature = "gpu")]
mod launches;
mod peak_memory;

use std::time::Instant;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use riverrun_models::LanguageModelKind;
use riverrun_train::tasks::Batch;
use riverrun_train::{Connected, Language, Learner, Part, Ranks as Ways, RunConfig, compile_ahead};

use super::report::Report;
use super::row::Row;
use super::timing::Timing;
use super::{Common, Grid};
use crate::failure::Failure;
use crate::model_shape::ModelShape;
use crate::ranks::Ranks;
use crate::started;
use peak_memory::Meter;

/// The models of the table on a GPU, and on the CPU.
const GPU: &[ModelShape] = &[
    ModelShape::new([256, 4, 64, 256, 65]),
    ModelShape::new([512, 6, 64, 1024, 65]),
    ModelShape::new([768, 12, 16, 1024, 50_257]),
];
const CPU: &[ModelShape] = &[ModelShape::new([128, 3, 16, 256, 65])];

/// Steps before anything is timed.
const WARM_UP: usize = 6;

/// Options of `riverrun bench train`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Shapes are models and batches WIDTHxLAYERSxBATCHxSTEPSxVOCAB. A model that does not learn is not timed, and ends the run with exit code 1.\nExample:\n  riverrun bench train --device cuda:0 --dtypes bf16 --kernels 12 --json train.json"
)]
pub struct Args {
    #[command(flatten)]
    grid: Grid<ModelShape>,
    /// Recurrent layer: min-gru, min-lstm, rg-lru, linear, gru, lstm, rnn, or a gate of the linear recurrence
    #[arg(long, value_name = "CELL", default_value = "min-gru")]
    model: LanguageModelKind,
    /// Timed steps
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    steps: usize,
    /// Record a step's launches and run them again by one call a step (GPU)
    #[arg(long)]
    graph: bool,
    /// Time the kernels of a step too, and print the N slowest; with --graph, of the same step without a recording (GPU)
    #[arg(long, value_name = "N", default_value_t = 0)]
    kernels: usize,
}

/// Measures; under a launcher on all ranks, of which the first prints: every model on each rank alone, then on all together, with
/// a batch of its shape on each.
///
/// # Errors
/// A model that does not learn; a rank that has failed.
pub fn run(args: &Args, common: &Common) -> Result<(), Failure> {
    let ranks = Ranks::join()?;
    let result = measure(args, common, &ranks);
    ranks.leave(result)
}

fn measure(args: &Args, common: &Common, ranks: &Ranks) -> Result<(), Failure> {
    let common = Common {
        device: ranks.device(&common.device)?,
        ..common.clone()
    };
    let mut report = Report::new(&common)?;
    let device = report.device.clone();
    let mut connected = ranks.connect(&device)?;
    let first = ranks.is_first();
    if first {
        report.line(format!("{} timed steps", args.steps))?;
        if let Some(Connected { way, .. }) = &connected {
            report.line(format!("{} ranks, by {way}", ranks.size()))?;
            report.fact("way", way);
        }
    }
    for dtype in args.grid.precisions()? {
        for shape in args.grid.or(if report.is_cpu() { CPU } else { GPU }) {
            let mut config = RunConfig::selective_copy();
            config.model = shape.model(args.model);
            config.training.dtype = dtype;
            config.check()?;
            compile_ahead(
                &Language::new(&config, false),
                &config.training,
                &shape.batch(11),
                &format!("{:?}", config.model),
                &device,
            );
            let alone = Bench::new(config.clone(), shape, &device, args.graph, None)?;
            let (row, speed) = alone.measure(args)?;
            let Some(Connected { ranks: way, .. }) = connected.take() else {
                report.add(row)?;
                continue;
            };
            let none = Shared {
                ranks: 1,
                scaling: None,
                exchange: None,
                of_step: None,
            };
            if first {
                report.add(none.columns(row))?;
            }
            let graph = args.graph && way.on_device();
            let together = Bench::new(config, shape, &device, graph, Some(way))?;
            let (row, shared, way) = together.measure_together(args, ranks.size(), speed)?;
            connected = way;
            if first {
                report.add(shared.columns(row))?;
            }
        }
    }
    match first {
        true => report.end(),
        false => Ok(()),
    }
}

/// What several ranks add to a row.
struct Shared {
    ranks: usize,
    /// All ranks' tokens per second, beside those of one alone.
    scaling: Option<f64>,
    /// The time of a step's sums among ranks.
    exchange: Option<Timing>,
    /// Its part of a step.
    of_step: Option<f64>,
}

impl Shared {
    fn columns(self, row: Row) -> Row {
        row.count("ranks", self.ranks)
            .number("scaling", 3, self.scaling)
            .beside_ms("exchange", self.exchange)
            .percent("of_step", self.of_step)
    }
}

/// A model with its batch, of all ranks if there are several.
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
        ways: Option<Box<dyn Ways>>,
    ) -> Result<Self, Failure> {
        let memory = Meter::new(device);
        let ranks = ways.as_ref().map_or(1, |ways| ways.size());
        let shape = ModelShape {
            batch: ranks * shape.batch,
            ..shape
        };
        let mut learner = match ways {
            None => Learner::language(&config, device)?,
            Some(ways) => Learner::language_on_ranks(&config, device, ways)?,
        };
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

    /// The row of a model, and its tokens per second.
    fn measure(mut self, args: &Args) -> Result<(Row, f64), Failure> {
        let (row, step) = self.timed(args)?;
        let speed = self.shape.tokens() as f64 / step.median;
        #[cfg(feature = "gpu")]
        let row = match self.launches(args)? {
            Some(launches) => launches.columns(row, args.kernels),
            None => row.count("launches_per_step", None).hidden("launches", ()),
        };
        Ok((row, speed))
    }

    /// The same on several ranks, beside the tokens per second of one; the way among them comes back.
    fn measure_together(
        mut self,
        args: &Args,
        ranks: usize,
        alone: f64,
    ) -> Result<(Row, Shared, Option<Connected>), Failure> {
        let (row, step) = self.timed(args)?;
        #[cfg(feature = "gpu")]
        let row = row.count("launches_per_step", None).hidden("launches", ());
        let exchange: Result<Vec<f64>, _> =
            (0..args.steps).map(|_| self.learner.time_sums()).collect();
        let exchange = Timing::of(exchange?);
        let shared = Shared {
            ranks,
            scaling: Some(self.shape.tokens() as f64 / step.median / alone),
            exchange: Some(exchange),
            of_step: Some(exchange.median / step.median),
        };
        let way = self.learner.into_ranks().map(|ranks| Connected {
            ranks,
            way: String::new(),
        });
        Ok((row, shared, way))
    }

    fn timed(&mut self, args: &Args) -> Result<(Row, Timing), Failure> {
        let start = Instant::now();
        let first = self.loss()?;
        // From the program's start to the end of the first step: of the first model alone that of a fresh start. And the first
        // step, with all that is compiled and tuned in it.
        let (first_step, first_step_at) = (start.elapsed().as_secs_f64(), started().as_secs_f64());
        for _ in 1..WARM_UP {
            self.step(&mut |_| ())?;
        }
        self.sync()?;
        let (mut steps, mut host) = (Vec::new(), Vec::new());
        for _ in 0..args.steps {
            let start = Instant::now();
            let loss = self.step(&mut |_| ())?;
            // Until all work was queued.
            host.push(start.elapsed().as_secs_f64());
            self.sync()?;
            steps.push(start.elapsed().as_secs_f64());
            drop(loss);
        }
        let peak = self.memory.peak();
        let [forward, backward, update] = self.parts(args.steps)?;
        let last = self.loss()?;
        self.learned(args.model, first, last)?;
        let (shape, step) = (self.shape, Timing::of(steps));
        let row = Row::new()
            .text("cell", args.model)
            .text("dtype", self.config.training.dtype)
            .counts(
                ["width", "layers", "batch", "steps", "vocab"],
                [
                    shape.width,
                    shape.layers,
                    shape.batch,
                    shape.steps,
                    shape.vocab,
                ],
            )
            .hidden("parameters", self.learner.model().num_params())
            .number("tokens_per_s", 0, shape.tokens() as f64 / step.median)
            .ms("step", step)
            .part("host", Timing::of(host))
            .part("forward", forward)
            .part("backward", backward)
            .part("update", update)
            // Whether steps were recorded and replayed; then there are no parts.
            .hidden("graph", self.learner.records())
            .bytes("peak_bytes", peak)
            .number("first_step_at", 1, first_step_at)
            .number("first_step", 1, first_step)
            .hidden("losses", [first, last]);
        Ok((row, step))
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
    fn launches(mut self, args: &Args) -> Result<Option<launches::Launches>, Failure> {
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
        let mut other = Self::new(config, shape, &device, false, None)?;
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
