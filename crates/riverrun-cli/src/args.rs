//! The command line: its words, and nothing about what they do.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use riverrun::models::CellKind;
use riverrun::ops::Checkpoints;
use riverrun_train::Precision;

/// Recurrent networks at the speed of the memory they move.
#[derive(Debug, Parser)]
#[command(name = "riverrun", version, about, after_help = HELP)]
pub struct Cli {
    /// How much to say
    #[command(flatten)]
    pub verbosity: Verbosity,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

const HELP: &str = "\
Exit codes: 0 done, 1 a fault of riverrun, 2 a fault in what it was given, 130 interrupted.
RUST_LOG chooses what is logged; NO_COLOR switches colours off.";

/// How much goes to standard error.
#[derive(Debug, Clone, Copy, Args)]
pub struct Verbosity {
    /// Log what the program decides, such as the routine of each operation (-vv for more)
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Show no progress, only results and errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a model on a text, or without one on the selective copying task
    Train(TrainArgs),
    /// Generate text with a trained model
    Generate(GenerateArgs),
    /// List the devices of this machine, and which routine each operation would take on each
    Devices,
    /// Check every kernel on this machine against the float64 oracle, forward and every gradient
    Verify(VerifyArgs),
    /// Measure kernels against the machine's copy bandwidth
    Bench(BenchArgs),
}

/// Options of `riverrun verify`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Exit code 1 if anything is wrong.\nExample:\n  riverrun verify --device cuda:0 --long"
)]
pub struct VerifyArgs {
    /// Where: auto, all, cpu, cuda:0, vulkan, ...
    #[arg(long, value_name = "DEVICE", default_value = "all")]
    pub device: String,
    /// Only this operation: recurrence, cell, linear, norm, loss, optimizer
    #[arg(long, value_name = "NAME")]
    pub op: Option<String>,
    /// Only this storage type: f32, f16, bf16, f64
    #[arg(long, value_name = "TYPE")]
    pub dtype: Option<String>,
    /// Large problems too: up to 65 537 steps, 5120 channels, and more than 2^31 elements where the device has the memory
    ///
    /// A large problem is a narrow one of 8 channels, repeated side by side by the device. The oracle computes the narrow
    /// one, and five of the repetitions, the first and the last among them, are held against it; the others are not looked
    /// at.
    #[arg(long)]
    pub long: bool,
}

/// Options of `riverrun bench`.
#[derive(Debug, Clone, Args)]
pub struct BenchArgs {
    /// What to measure
    #[command(subcommand)]
    pub what: BenchCommand,
}

/// What can be measured.
#[derive(Debug, Clone, Subcommand)]
pub enum BenchCommand {
    /// The linear recurrence: bytes per second, part of the copy bandwidth measured in the same run
    Recurrence(BenchRecurrenceArgs),
    /// RMSNorm and LayerNorm, with and without a residual: part of the copy bandwidth
    Norm(BenchRowsArgs),
    /// The cross-entropy of logits: part of the copy bandwidth
    Loss(BenchRowsArgs),
    /// Layers that compute their states again in the backward pass: memory against time
    Checkpoints(BenchCheckpointsArgs),
    /// GRU, LSTM and Elman layers: milliseconds over sequences, beside the layers of burn::nn
    Cell(BenchCellArgs),
    /// Linear layers and MLPs: time of a call, the host's part of it, multiplications and additions per second
    Linear(BenchLinearArgs),
}

/// Options of `riverrun bench norm` and `riverrun bench loss`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "A result that is wrong is not timed, and ends the run with exit code 1.\nExample:\n  riverrun bench norm --device cuda:0 --shapes 8192x4096 --dtypes bf16"
)]
pub struct BenchRowsArgs {
    /// Where: auto, cpu, cuda:0, vulkan, ...
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: String,
    /// Rows and their width, RxD, separated by commas [default: a set that fits the device]
    #[arg(long, value_name = "SHAPES", value_delimiter = ',')]
    pub shapes: Vec<String>,
    /// Storage types, separated by commas [default: f32,f16,bf16 on a GPU, f32 on the CPU]
    #[arg(long, value_name = "TYPES", value_delimiter = ',')]
    pub dtypes: Vec<String>,
    /// Try these tunings too (GPU), separated by commas: norm bytes:share:cube:cubes, loss bytes:ahead:share:units
    #[arg(long, value_name = "TUNINGS", value_delimiter = ',')]
    pub tunings: Vec<String>,
    /// Write the results here too
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Options of `riverrun bench cell`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Layers that differ from those of burn::nn with the same weights are not timed, and end the run with exit code 1.\nExample:\n  riverrun bench cell --device cpu --cells gru --shapes 1x256x256,16x256x256 --json cell.json"
)]
pub struct BenchCellArgs {
    /// Where: auto, cpu, cuda:0, vulkan, ...
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: String,
    /// Cells: gru, lstm, rnn, separated by commas
    #[arg(long, value_name = "CELLS", value_delimiter = ',', default_value = "gru,lstm", value_parser = cell_name)]
    pub cells: Vec<&'static str>,
    /// Shapes BxTxH, separated by commas [default: T 256; H 128, 256, 512; B 1, 16, 64]
    #[arg(long, value_name = "SHAPES", value_delimiter = ',')]
    pub shapes: Vec<String>,
    /// Storage types, separated by commas
    #[arg(
        long,
        value_name = "TYPES",
        value_delimiter = ',',
        default_value = "f32"
    )]
    pub dtypes: Vec<Precision>,
    /// Without the layers of burn::nn
    #[arg(long)]
    pub alone: bool,
    /// Seconds for each pass of each shape
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    pub budget: f64,
    /// Write the results here too
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

fn cell_name(name: &str) -> Result<&'static str, String> {
    const CELLS: [&str; 3] = ["gru", "lstm", "rnn"];
    CELLS
        .into_iter()
        .find(|known| *known == name)
        .ok_or_else(|| format!("one of: {}", CELLS.join(", ")))
}

/// Options of `riverrun bench checkpoints`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Example:\n  riverrun bench checkpoints --device cuda:0 --shape 16x4096x512 --layers 8 --dtypes f32,bf16"
)]
pub struct BenchCheckpointsArgs {
    /// Where: auto, cpu, cuda:0, vulkan, ...
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: String,
    /// Sequences, steps and channels, BxTxD
    #[arg(long, value_name = "SHAPE", default_value = "8x1024x128")]
    pub shape: String,
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
    /// What is kept: all, none, or a state every N steps, separated by commas
    #[arg(
        long,
        value_name = "KEPT",
        value_delimiter = ',',
        default_value = "all,64,256,none"
    )]
    pub kept: Vec<Checkpoints>,
    /// Write the results here too
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Options of `riverrun bench linear`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "A result that is wrong is not timed, and ends the run with exit code 1.\nExample:\n  riverrun bench linear --device cuda:0 --routes vendor,backend --json linear.json"
)]
pub struct BenchLinearArgs {
    /// Where: auto, cpu, cuda:0, vulkan, ...
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: String,
    /// Shapes ROWSxINxOUT, separated by commas [default: a set that fits the device]
    #[arg(long, value_name = "SHAPES", value_delimiter = ',')]
    pub shapes: Vec<String>,
    /// Storage types, separated by commas [default: f32,bf16 on a GPU, f32 on the CPU]
    #[arg(long, value_name = "TYPES", value_delimiter = ',')]
    pub dtypes: Vec<String>,
    /// Who makes the products, separated by commas: choice, vendor, backend [default: choice]
    #[arg(long, value_name = "ROUTES", value_delimiter = ',')]
    pub routes: Vec<String>,
    /// Milliseconds for each measurement, at least
    #[arg(long, value_name = "MS", default_value_t = 200)]
    pub budget_ms: u64,
    /// Write the results here too
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Options of `riverrun bench recurrence`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "A result that is wrong is not timed, and ends the run with exit code 1.\nExamples:\n  riverrun bench recurrence --device cuda:0 --json recurrence.json\n  riverrun bench recurrence --device cpu --shapes 4x1024x512\n  riverrun bench recurrence --device cuda:0 --report efficiency --out efficiency"
)]
pub struct BenchRecurrenceArgs {
    /// Where: auto, cpu, cuda:0, vulkan, ...
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: String,
    /// Shapes BxTxD, separated by commas [default: a set that fits the device]
    #[arg(long, value_name = "SHAPES", value_delimiter = ',')]
    pub shapes: Vec<String>,
    /// Gates: raw, min-gru, min-lstm, ... separated by commas [default: those of the shape's set]
    #[arg(long, value_name = "GATES", value_delimiter = ',')]
    pub gates: Vec<String>,
    /// Storage types, separated by commas [default: f32,f16,bf16 on a GPU, f32 on the CPU]
    #[arg(long, value_name = "TYPES", value_delimiter = ',')]
    pub dtypes: Vec<String>,
    /// Force a routine: unit, chained, chunked [default: the measured choice]
    #[arg(long, value_name = "NAME")]
    pub routine: Option<String>,
    /// Try these tunings too, as vector:len:planes:share[:keep] (GPU), separated by commas
    #[arg(long, value_name = "TUNINGS", value_delimiter = ',')]
    pub tunings: Vec<String>,
    /// Write the results here too
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
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

const TRAIN_HELP: &str = "\
Examples:
  riverrun train                            selective copying: two minutes on two CPU cores
  riverrun train shakespeare.txt            a character model of a text
  cat *.txt | riverrun train - --out runs/all --device cuda:0 --dtype bf16
  riverrun train --resume --out runs/all    go on after Ctrl-C

The run's folder receives config.json, metrics.jsonl, checkpoint/, best/, loss.svg and loss.png.";

/// Options of `riverrun train`. Those left out have the task's defaults, or the run's on `--resume`.
#[derive(Debug, Clone, Default, Args)]
#[command(after_help = TRAIN_HELP)]
pub struct TrainArgs {
    /// Text to learn: files in order, `-` for standard input; none for selective copying
    pub paths: Vec<String>,
    /// Task without a text [selective-copy]
    #[arg(long, value_name = "NAME", conflicts_with = "paths")]
    pub task: Option<String>,
    /// Recurrent layer: min-gru, min-lstm, rg-lru, linear, gru, lstm or rnn [default: min-gru]
    #[arg(long, value_name = "CELL")]
    pub model: Option<CellKind>,
    /// Blocks of recurrent layer and MLP [default: 3]
    #[arg(long, value_name = "N")]
    pub layers: Option<usize>,
    /// Channels [default: 128; selective copying 64]
    #[arg(long, value_name = "N")]
    pub width: Option<usize>,
    /// Recurrent channels for each channel of the width [default: 1; selective copying 4]
    #[arg(long, value_name = "N")]
    pub expansion: Option<usize>,
    /// Steps that the slowest recurrent channels start out remembering [default: 1, no such start; selective copying
    /// its context]
    #[arg(long, value_name = "N")]
    pub time_scale: Option<usize>,
    /// Symbols in a sequence; blanks in selective copying [default: 256; selective copying 64]
    #[arg(long, value_name = "N")]
    pub context: Option<usize>,
    /// Sequences in a batch [default: 16; selective copying 32]
    #[arg(long, value_name = "N")]
    pub batch: Option<usize>,
    /// Steps of the whole run [default: 2000; selective copying 1000]
    #[arg(long, value_name = "N")]
    pub steps: Option<u64>,
    /// Peak learning rate [default: 2e-3; selective copying 1e-2]
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    pub lr: Option<f64>,
    /// Steps of linear warm-up [default: a tenth of the run, at most 100]
    #[arg(long, value_name = "N")]
    pub warmup: Option<u64>,
    /// Decay of weight matrices [default: 0.1]
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    pub weight_decay: Option<f64>,
    /// Part of the activations dropped in training [default: 0]
    #[arg(long, value_name = "PART", allow_negative_numbers = true)]
    pub dropout: Option<f64>,
    /// Seed of weights, batches and dropout [default: 0]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Format of the arithmetic: f32, f16 or bf16; weights and moments stay f32 [default: f32]
    #[arg(long, value_name = "FORMAT")]
    pub dtype: Option<Precision>,
    /// States of the linear-recurrent layers kept for the backward pass: all, none, or one every N steps; the others are
    /// computed again [default: all]
    #[arg(long, value_name = "all|none|N")]
    pub checkpoints: Option<Checkpoints>,
    /// Part of the text that trains; the rest validates [default: 0.9]
    #[arg(long, value_name = "PART", allow_negative_numbers = true)]
    pub split: Option<f64>,
    /// Tokens to copy, in selective copying [default: 8]
    #[arg(long, value_name = "N", conflicts_with = "paths")]
    pub data_tokens: Option<usize>,
    /// Steps between evaluations; each saves a checkpoint [default: 20 a run, 10 to 500 apart]
    #[arg(long, value_name = "N")]
    pub eval_every: Option<u64>,
    /// Where to compute: auto, cpu, cuda:0, vulkan, ...; see `riverrun devices`
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: String,
    /// Folder of the run [default: runs/TASK-001, -002, ...]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Go on with the run in --out, with its own options; --steps may extend it
    #[arg(long, requires = "out")]
    pub resume: bool,
}

/// Options of `riverrun generate`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Example:\n  riverrun generate runs/text-001 --prompt 'ROMEO:' --tokens 300"
)]
pub struct GenerateArgs {
    /// Folder of a run that was trained on text
    pub run: PathBuf,
    /// Text to go on from
    #[arg(long, default_value = "")]
    pub prompt: String,
    /// Symbols to generate
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub tokens: usize,
    /// Above 1 bolder, below 1 safer, 0 always the most likely symbol
    #[arg(
        long,
        value_name = "T",
        default_value_t = 0.8,
        allow_negative_numbers = true
    )]
    pub temperature: f64,
    /// Draw from so many of the most likely symbols only
    #[arg(long, value_name = "N")]
    pub top_k: Option<usize>,
    /// Seed of the draws
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Where to compute: auto, cpu, cuda:0, vulkan, ...
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: String,
}
