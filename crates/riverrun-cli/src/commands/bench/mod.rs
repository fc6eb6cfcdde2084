//! `riverrun bench`: a file or folder for each measurement, with its options, its problems, what it runs and its columns.

mod activation;
mod attention;
mod bits;
mod block_diagonal;
mod cell;
#[cfg(unix)]
mod collectives;
#[cfg(unix)]
mod context;
mod cpu;
mod decode;
mod encoder;
mod generate;
#[cfg(feature = "gpu")]
pub mod gpu;
mod hybrid;
mod launches;
mod layer;
mod linear;
mod loss;
mod matrix_state;
mod norm;
mod recompute;
mod recorded;
pub mod recurrence;
pub mod report;
mod rollout;
pub mod row;
mod rssm;
mod step;
pub mod timing;
mod train;
mod transfer;

use std::error::Error;
use std::fmt::Debug;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Subcommand;
use riverrun_train::Precision;

use crate::args::names::{Sizes, seconds};
use crate::failure::Failure;
use report::Report;
use riverrun_testkit::Storage;

/// Options of `riverrun bench`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "A result that is wrong is not timed, and ends the run with exit code 1.")]
pub struct BenchArgs {
    /// Options of every measurement
    #[command(flatten)]
    common: Common,
    /// The measurement to make
    #[command(subcommand)]
    what: Measurement,
}

/// Options of every measurement.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Common {
    /// Where: auto, cpu, cuda:0, vulkan, ...
    #[arg(long, global = true, value_name = "DEVICE", default_value = "auto")]
    device: String,
    /// Write the results here too
    #[arg(long, global = true, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Seconds for each timing, at least [default: that of the measurement]
    #[arg(long, global = true, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true)]
    budget: Option<f64>,
    /// Show the memory in use, its peak and the largest allocations at the end
    #[arg(long, global = true)]
    memory: bool,
}

impl Common {
    /// Those of a measurement on a device.
    pub fn on(device: &str) -> Self {
        Self {
            device: device.into(),
            ..Self::default()
        }
    }
}

/// Options of the measurements that have shapes and storage types.
#[derive(Debug, Clone, clap::Args)]
struct Grid<S>
where
    S: FromStr + Clone + Debug + Send + Sync + 'static,
    S::Err: Into<Box<dyn Error + Send + Sync>>,
{
    /// Shapes, in the form below, separated by commas [default: a set that fits the device]
    #[arg(long, visible_aliases = ["shape", "sizes"], value_name = "SHAPES", value_delimiter = ',')]
    shapes: Vec<S>,
    /// Storage types, separated by commas [default: by measurement and device]
    #[arg(long, value_name = "TYPES", value_delimiter = ',', value_enum)]
    dtypes: Vec<Storage>,
}

impl<S> Grid<S>
where
    S: FromStr + Clone + Debug + Send + Sync + 'static,
    S::Err: Into<Box<dyn Error + Send + Sync>>,
{
    /// The requested shapes, or the default ones.
    fn or(&self, default: &[S]) -> Vec<S> {
        match self.shapes.is_empty() {
            true => default.to_vec(),
            false => self.shapes.clone(),
        }
    }

    /// The requested formats of arithmetic, or f32.
    fn precisions(&self) -> Result<Vec<Precision>, Failure> {
        let formats = self.dtypes.iter().map(|dtype| Ok(dtype.name().parse()?));
        match self.dtypes.is_empty() {
            true => Ok(vec![Precision::F32]),
            false => formats.collect(),
        }
    }
}

impl<const N: usize> Grid<Sizes<N>> {
    /// The requested sizes, or the default ones.
    fn sizes(&self, default: &[[usize; N]]) -> Vec<[usize; N]> {
        match self.shapes.is_empty() {
            true => default.to_vec(),
            false => self.shapes.iter().map(|shape| shape.0).collect(),
        }
    }
}

/// The measurements.
#[derive(Debug, Clone, Subcommand)]
enum Measurement {
    /// The linear recurrence: bytes per second, part of the copy bandwidth measured in the same run
    Recurrence(recurrence::Args),
    /// RMSNorm and LayerNorm, with and without a residual: part of the copy bandwidth
    Norm(norm::Args),
    /// Recurrences with a matrix for a state: forward and backward, beside the copy bandwidth
    MatrixState(matrix_state::Args),
    /// The block-diagonal recurrence, as an operation on tensors: part of the copy bandwidth
    BlockDiagonal(block_diagonal::Args),
    /// The cross-entropy of logits: part of the copy bandwidth
    Loss(loss::Args),
    /// GELU and SiLU by themselves and as gates, as operations on tensors: part of the copy bandwidth
    #[command(alias = "gelu")]
    Activation(activation::Args),
    /// Layers that recompute their states in the backward pass: memory against time
    #[command(alias = "checkpoints")]
    Recompute(recompute::Args),
    /// GRU, LSTM and Elman layers: milliseconds over sequences, beside the layers of burn::nn
    Cell(cell::Args),
    /// Whole recurrent layers on the CPU and on a GPU in one run: speed-up and crossover over the steps, minGRU beside GRU
    Layer(layer::Args),
    /// Weights of 16, 8 and 4 bits of a trained model on the CPU: validation loss, milliseconds of a text
    Bits(bits::Args),
    /// Steps of a text as `riverrun generate` makes it: microseconds, tokens per second
    Generate(generate::Args),
    /// Training steps of language models: tokens per second, milliseconds by part, launches, memory, start-up time
    Train(train::Args),
    /// Linear layers and MLPs: time of a call, the host's part of it, floating-point operations per second
    Linear(linear::Args),
    /// Attention: forward and backward, part of the speed of a matrix product in the same run
    Attention(attention::Args),
    /// Ensemble rollouts: milliseconds, beside a scalar program in the same run; memory by size
    Rollout(rollout::Args),
    /// Single steps of GRU, LSTM and Elman layers: microseconds on the device, on the CPU, and in one launch of many
    Step(step::Args),
    /// Single steps of layers with heads, as a text is generated: microseconds launched and recorded
    Decode(decode::Args),
    /// Tensors from the host to the device, back, and on it: microseconds, bytes per second
    Transfer(transfer::Args),
    /// States of training runs as features: microseconds of one run, and of many at once
    Encoder(encoder::Args),
    /// The recurrent state-space model: observing, forward and backward, and imagining
    Rssm(rssm::Args),
    /// Hybrid training beside plain training: steps, seconds, and seconds to an equal validation loss
    Hybrid(hybrid::Args),
    /// Sums and copies among the ranks of a world, by NCCL or TCP: milliseconds, bytes per second
    #[cfg(unix)]
    Collectives(collectives::Args),
    /// A linear recurrence over sequences divided along time among ranks, beside the whole ones on one of them: milliseconds
    #[cfg(unix)]
    Context(context::Args),
}

/// Runs the requested measurement.
pub fn run(args: &BenchArgs) -> Result<(), Failure> {
    match &args.what {
        #[cfg(unix)]
        Measurement::Collectives(collectives) => {
            return collectives::run(collectives, &args.common);
        }
        Measurement::Train(train) => return train::run(train, &args.common),
        _ => {}
    }
    #[cfg(unix)]
    if let Measurement::Context(context) = &args.what {
        return context::run(context, &args.common);
    }
    let mut report = Report::new(&args.common)?;
    let there = &mut report;
    match &args.what {
        Measurement::Recurrence(args) => recurrence::run(args, there),
        Measurement::Norm(args) => norm::run(args, there),
        Measurement::MatrixState(args) => matrix_state::run(args, there),
        Measurement::BlockDiagonal(args) => block_diagonal::run(args, there),
        Measurement::Loss(args) => loss::run(args, there),
        Measurement::Activation(args) => activation::run(args, there),
        Measurement::Recompute(args) => recompute::run(args, there),
        Measurement::Cell(args) => cell::run(args, there),
        Measurement::Layer(args) => layer::run(args, there),
        Measurement::Bits(args) => bits::run(args, there),
        Measurement::Generate(args) => generate::run(args, there),
        Measurement::Linear(args) => linear::run(args, there),
        Measurement::Attention(args) => attention::run(args, there),
        Measurement::Rollout(args) => rollout::run(args, there),
        Measurement::Step(args) => step::run(args, there),
        Measurement::Decode(args) => decode::run(args, there),
        Measurement::Transfer(args) => transfer::run(args, there),
        Measurement::Encoder(args) => encoder::run(args, there),
        Measurement::Rssm(args) => rssm::run(args, there),
        Measurement::Hybrid(args) => hybrid::run(args, there),
        Measurement::Train(_) => Ok(()),
        #[cfg(unix)]
        Measurement::Collectives(_) | Measurement::Context(_) => Ok(()),
    }?;
    report.end()
}
