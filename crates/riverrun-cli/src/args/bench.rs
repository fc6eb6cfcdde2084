//! Options of `riverrun bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use riverrun::ops::SavedStates;
use riverrun_kernels::recurrence::{Gate, Routine};
use riverrun_models::LanguageModelKind;
use riverrun_train::Precision;

use super::attention::BenchAttentionArgs;
use super::common::Common;
use super::hybrid::BenchHybridArgs;
use super::names::{gate, routine, seconds};
use super::world_models::{BenchEncoderArgs, BenchRolloutArgs, BenchRssmArgs, BenchStepArgs};
use super::{Sizes, Storage};
use crate::model_shape::ModelShape;

/// Options of `riverrun bench`.
#[derive(Debug, Clone, Args)]
pub struct BenchArgs {
    /// The measurement to make
    #[command(subcommand)]
    pub what: BenchCommand,
}

/// The measurements.
#[derive(Debug, Clone, Subcommand)]
pub enum BenchCommand {
    /// The linear recurrence: bytes per second, part of the copy bandwidth measured in the same run
    Recurrence(BenchRecurrenceArgs),
    /// RMSNorm and LayerNorm, with and without a residual: part of the copy bandwidth
    Norm(BenchRowsArgs),
    /// The cross-entropy of logits: part of the copy bandwidth
    Loss(BenchRowsArgs),
    /// GELU by itself, as an operation on tensors: part of the copy bandwidth
    Gelu(BenchGeluArgs),
    /// Layers that recompute their states in the backward pass: memory against time
    #[command(alias = "checkpoints")]
    Recompute(BenchRecomputeArgs),
    /// GRU, LSTM and Elman layers: milliseconds over sequences, beside the layers of burn::nn
    Cell(BenchCellArgs),
    /// Training steps of language models: tokens per second, milliseconds by part, launches, memory, start-up time
    Train(BenchTrainArgs),
    /// Linear layers and MLPs: time of a call, the host's part of it, floating-point operations per second
    Linear(BenchLinearArgs),
    /// Attention: forward and backward, part of the speed of a matrix product in the same run
    Attention(BenchAttentionArgs),
    /// Ensemble rollouts: milliseconds, beside a scalar program in the same run; memory by size
    Rollout(BenchRolloutArgs),
    /// Single steps of GRU, LSTM and Elman layers: microseconds on the device, on the CPU, and in one launch of many
    Step(BenchStepArgs),
    /// States of training runs as features: microseconds of one run, and of many at once
    Encoder(BenchEncoderArgs),
    /// The recurrent state-space model: observing, forward and backward, and imagining
    Rssm(BenchRssmArgs),
    /// Hybrid training beside plain training: steps, seconds, and seconds to an equal validation loss
    Hybrid(BenchHybridArgs),
}

impl BenchCommand {
    /// The options of every measurement.
    pub fn common(&self) -> &Common {
        match self {
            Self::Recurrence(args) => &args.common,
            Self::Norm(args) | Self::Loss(args) => &args.common,
            Self::Gelu(args) => &args.common,
            Self::Recompute(args) => &args.common,
            Self::Cell(args) => &args.common,
            Self::Train(args) => &args.common,
            Self::Linear(args) => &args.common,
            Self::Attention(args) => &args.common,
            Self::Rollout(args) => &args.common,
            Self::Step(args) => &args.common,
            Self::Encoder(args) => &args.common,
            Self::Rssm(args) => &args.common,
            Self::Hybrid(args) => &args.common,
        }
    }
}

/// Options of `riverrun bench norm` and `riverrun bench loss`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "A result that is wrong is not timed, and ends the run with exit code 1.\nExample:\n  riverrun bench norm --device cuda:0 --shapes 8192x4096 --dtypes bf16"
)]
pub struct BenchRowsArgs {
    /// Device and output file
    #[command(flatten)]
    pub common: Common,
    /// Rows and their width, RxD, separated by commas [default: a set that fits the device]
    #[arg(long, value_name = "SHAPES", value_delimiter = ',')]
    pub shapes: Vec<Sizes<2>>,
    /// Storage types, separated by commas [default: f32,f16,bf16 on a GPU, f32 on the CPU]
    #[arg(long, value_name = "TYPES", value_delimiter = ',', value_enum)]
    pub dtypes: Vec<Storage>,
    /// Try these tunings too (GPU), separated by commas: norm bytes:per_thread:cube:cubes, loss bytes:ahead:per_thread:units
    #[arg(long, value_name = "TUNINGS", value_delimiter = ',')]
    pub tunings: Vec<String>,
}

/// Options of `riverrun bench gelu`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "A result that is wrong is not timed, and ends the run with exit code 1.\nExample:\n  riverrun bench gelu --device cuda:0 --shapes 8192x2048 --dtypes bf16"
)]
pub struct BenchGeluArgs {
    /// Device and output file
    #[command(flatten)]
    pub common: Common,
    /// Shapes RxD, separated by commas
    #[arg(
        long,
        value_name = "SHAPES",
        value_delimiter = ',',
        default_value = "4096x1024,8192x2048,16384x4096"
    )]
    pub shapes: Vec<Sizes<2>>,
    /// Storage types, separated by commas [default: f32,bf16 on a GPU, f32 on the CPU]
    #[arg(long, value_name = "TYPES", value_delimiter = ',', value_enum)]
    pub dtypes: Vec<Storage>,
}

/// Options of `riverrun bench cell`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Layers that differ from those of burn::nn with the same weights are not timed, and end the run with exit code 1.\nExample:\n  riverrun bench cell --device cpu --cells gru --shapes 1x256x256,16x256x256 --json cell.json"
)]
pub struct BenchCellArgs {
    /// Device and output file
    #[command(flatten)]
    pub common: Common,
    /// Cells: gru, lstm, rnn, separated by commas
    #[arg(long, value_name = "CELLS", value_delimiter = ',', default_value = "gru,lstm", value_parser = cell_name)]
    pub cells: Vec<&'static str>,
    /// Shapes BxTxH, separated by commas [default: T 256; H 128, 256, 512; B 1, 16, 64]
    #[arg(long, value_name = "SHAPES", value_delimiter = ',')]
    pub shapes: Vec<Sizes<3>>,
    /// Storage types, separated by commas
    #[arg(
        long,
        value_name = "TYPES",
        value_delimiter = ',',
        default_value = "f32"
    )]
    pub dtypes: Vec<Precision>,
    /// Heads of the recurrent weights, separated by commas; several have no layer of burn::nn beside them
    #[arg(long, value_name = "HEADS", value_delimiter = ',', default_value = "1", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub heads: Vec<usize>,
    /// Without the layers of burn::nn
    #[arg(long)]
    pub alone: bool,
    /// Seconds for each pass of each shape
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = seconds, allow_negative_numbers = true)]
    pub budget: f64,
}

fn cell_name(name: &str) -> Result<&'static str, String> {
    const CELLS: [&str; 3] = ["gru", "lstm", "rnn"];
    CELLS
        .into_iter()
        .find(|known| *known == name)
        .ok_or_else(|| format!("one of: {}", CELLS.join(", ")))
}

/// Options of `riverrun bench recompute`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Example:\n  riverrun bench recompute --device cuda:0 --shape 16x4096x512 --layers 8 --dtypes f32,bf16"
)]
pub struct BenchRecomputeArgs {
    /// Device and output file
    #[command(flatten)]
    pub common: Common,
    /// Sequences, steps and channels, BxTxD
    #[arg(long, value_name = "SHAPE", default_value = "8x1024x128")]
    pub shape: Sizes<3>,
    /// Residual layers of minGRU
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub layers: usize,
    /// Storage types, separated by commas
    #[arg(
        long,
        value_name = "TYPES",
        value_delimiter = ',',
        default_value = "f32"
    )]
    pub dtypes: Vec<Precision>,
    /// Saved states: all, none, separated by commas
    #[arg(
        long,
        value_name = "STATES",
        value_delimiter = ',',
        default_value = "all,none"
    )]
    pub saved_states: Vec<SavedStates>,
}

/// Options of `riverrun bench train`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "A model that does not learn is not timed, and ends the run with exit code 1.\nExample:\n  riverrun bench train --device cuda:0 --dtypes bf16 --kernels 12 --json train.json"
)]
pub struct BenchTrainArgs {
    /// Device and output file
    #[command(flatten)]
    pub common: Common,
    /// Models and batches WIDTHxLAYERSxBATCHxSTEPSxVOCAB, separated by commas [default: a set that fits the device]
    #[arg(long, value_name = "SHAPES", value_delimiter = ',')]
    pub shapes: Vec<ModelShape>,
    /// Recurrent layer: min-gru, min-lstm, rg-lru, linear, gru, lstm, rnn, or a gate of the linear recurrence
    #[arg(long, value_name = "CELL", default_value = "min-gru")]
    pub model: LanguageModelKind,
    /// Formats of the arithmetic, separated by commas
    #[arg(
        long,
        value_name = "FORMATS",
        value_delimiter = ',',
        default_value = "f32"
    )]
    pub dtypes: Vec<Precision>,
    /// Timed steps
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub steps: usize,
    /// Record a step's launches and run them again by one call a step (GPU)
    #[arg(long)]
    pub graph: bool,
    /// Time the kernels of a step too, and print the N slowest; with --graph, of the same step without a recording (GPU)
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub kernels: usize,
}

/// Options of `riverrun bench linear`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "A result that is wrong is not timed, and ends the run with exit code 1.\nExample:\n  riverrun bench linear --device cuda:0 --routes vendor,backend --json linear.json"
)]
pub struct BenchLinearArgs {
    /// Device and output file
    #[command(flatten)]
    pub common: Common,
    /// Shapes ROWSxINxOUT, separated by commas [default: a set that fits the device]
    #[arg(long, value_name = "SHAPES", value_delimiter = ',')]
    pub shapes: Vec<Sizes<3>>,
    /// Storage types, separated by commas [default: f32,bf16 on a GPU, f32 on the CPU]
    #[arg(long, value_name = "TYPES", value_delimiter = ',', value_enum)]
    pub dtypes: Vec<Storage>,
    /// Which library computes the matmuls, separated by commas
    #[arg(
        long,
        value_name = "ROUTES",
        value_delimiter = ',',
        value_enum,
        default_value = "choice"
    )]
    pub routes: Vec<LinearRoute>,
    /// Milliseconds for each measurement, at least
    #[arg(long, value_name = "MS", default_value_t = 200)]
    pub budget_ms: u64,
}

/// The library that computes the matmuls of a linear layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LinearRoute {
    /// The measured choice
    Choice,
    /// The GPU vendor's library
    Vendor,
    /// Burn's own kernels
    Backend,
}

impl LinearRoute {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Choice => "choice",
            Self::Vendor => "vendor",
            Self::Backend => "backend",
        }
    }
}

/// Options of `riverrun bench recurrence`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "A result that is wrong is not timed, and ends the run with exit code 1.\nExamples:\n  riverrun bench recurrence --device cuda:0 --json recurrence.json\n  riverrun bench recurrence --device cpu --shapes 4x1024x512\n  riverrun bench recurrence --device cuda:0 --report efficiency --out efficiency"
)]
pub struct BenchRecurrenceArgs {
    /// Device and output file
    #[command(flatten)]
    pub common: Common,
    /// Shapes BxTxD, separated by commas [default: a set that fits the device]
    #[arg(long, value_name = "SHAPES", value_delimiter = ',')]
    pub shapes: Vec<Sizes<3>>,
    /// Gates, separated by commas [default: raw, min-gru and min-lstm, each with shapes of its own]
    #[arg(long, value_name = "GATES", value_delimiter = ',', value_parser = gate())]
    pub gates: Vec<Gate>,
    /// Storage types, separated by commas [default: f32,f16,bf16 on a GPU, f32 on the CPU]
    #[arg(long, value_name = "TYPES", value_delimiter = ',', value_enum)]
    pub dtypes: Vec<Storage>,
    /// Force a routine (GPU) [default: the measured choice]
    #[arg(long, value_name = "NAME", value_parser = routine())]
    pub routine: Option<Routine>,
    /// Try these tunings too, as vector:len:planes:lookback[:registers] (GPU), separated by commas
    #[arg(long, value_name = "TUNINGS", value_delimiter = ',')]
    pub tunings: Vec<String>,
    /// A report instead of a table: time or error over the number of steps
    #[arg(long, value_name = "KIND", value_enum, conflicts_with_all = ["shapes", "gates", "tunings", "json"])]
    pub report: Option<ReportKind>,
    /// The report's folder
    #[arg(
        long,
        value_name = "DIR",
        default_value = "report",
        requires = "report"
    )]
    pub out: PathBuf,
}

/// The reports of `riverrun bench recurrence`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReportKind {
    /// Part of the copy bandwidth over steps and over lanes, routine beside routine
    Efficiency,
    /// Largest and root-mean-square error against float64 over steps, storage type beside storage type
    Precision,
}
