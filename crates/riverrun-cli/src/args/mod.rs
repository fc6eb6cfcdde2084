//! Command-line definitions (clap).

pub mod hybrid;
pub mod names;
mod verify;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use riverrun::nn::quantized::Bits;
use riverrun::ops::SavedStates;
use riverrun_models::LanguageModelKind;
use riverrun_train::hybrid::HybridConfig;
use riverrun_train::tasks::SymbolKind;
use riverrun_train::{Decay, DigitsNet, OptimizerKind, Precision};

use crate::commands::bench::BenchArgs;
use crate::commands::tune::TuneArgs;
use crate::generator::bits;

use hybrid::{HybridArgs, HybridCommand, PredictorChoice};
pub use names::Format;
pub use verify::VerifyArgs;

/// Train, run, verify and measure recurrent networks.
#[derive(Debug, Parser)]
#[command(name = "riverrun", version, about, after_help = HELP)]
pub struct Cli {
    /// How much to say
    #[command(flatten)]
    pub verbosity: Verbosity,
    /// The command
    #[command(subcommand)]
    pub command: Command,
}

const HELP: &str = "\
Exit codes: 0 done, 1 a fault of riverrun or of another rank, 2 a fault in what it was given, 130 interrupted.
RUST_LOG chooses what is logged; NO_COLOR switches colours off; RIVERRUN_CUDNN=off leaves cuDNN out of attention, a path names it;
RIVERRUN_TUNING=off leaves the table of `riverrun tune` out, a path names it.";

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
    /// Start several ranks of a training run on this machine, each with a share of every batch
    #[cfg(unix)]
    Launch(LaunchArgs),
    /// Say what memory a training run of a language model will take, by the options of `train`, or by those of the run in --out
    /// with --resume; nothing is made
    Plan(TrainArgs),
    /// Teach predictors of hybrid training
    Hybrid(HybridCommand),
    /// Generate text with a trained model
    Generate(GenerateArgs),
    /// Write a trained recurrent language model as an ONNX model
    Export(ExportArgs),
    /// List the devices of this machine and the routine that each operation takes; with -v, the libraries of matmuls and attention too
    Devices,
    /// Show or clear the folder that keeps compiled kernels from run to run
    Cache(CacheArgs),
    /// Check every kernel on this machine against the float64 oracle, forward and every gradient
    Verify(VerifyArgs),
    /// Measure kernels against the machine's copy bandwidth
    Bench(BenchArgs),
    /// Measure on this card what later runs choose from, and keep a table of what is faster than the defaults
    Tune(TuneArgs),
}

const LAUNCH_HELP: &str = "\
Examples:
  riverrun launch --processes 2 -- train shakespeare.txt --out runs/two
  riverrun launch --gpus 2 -- train shakespeare.txt --batch 64

`train` finds its rank in the variables of torchrun, srun and mpirun too. Rank 0 writes the run's folder.
When a rank fails, all end; Ctrl-C saves a checkpoint and ends all.";

/// Options of `riverrun launch`.
#[derive(Debug, Clone, Args)]
#[command(after_help = LAUNCH_HELP, group = clap::ArgGroup::new("ranks").required(true))]
pub struct LaunchArgs {
    /// Ranks to start
    #[arg(long, value_name = "N", group = "ranks", value_parser = names::positive())]
    pub processes: Option<usize>,
    /// Ranks to start, one for each of this machine's first N GPUs
    #[arg(long, value_name = "N", group = "ranks", value_parser = names::positive())]
    pub gpus: Option<usize>,
    /// Words of the command that every rank runs: train and its options
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    pub words: Vec<std::ffi::OsString>,
}

/// Options of `riverrun cache`.
#[derive(Debug, Clone, Args)]
pub struct CacheArgs {
    /// The action on the cache
    #[command(subcommand)]
    pub what: CacheCommand,
}

/// The actions on the kernel cache.
#[derive(Debug, Clone, Copy, Subcommand)]
pub enum CacheCommand {
    /// The folder, and what it holds by kind
    List,
    /// Empty the folder: later programs compile from the start
    Clear,
}

const TRAIN_HELP: &str = "\
Examples:
  riverrun train                            selective copying: two minutes on two CPU cores
  riverrun train --task pendulum            a world model of a pendulum: as long
  riverrun train shakespeare.txt            a character model of a text
  cat *.txt | riverrun train - --out runs/all --device cuda:0 --dtype bf16
  riverrun train --resume --out runs/all    go on after Ctrl-C
  riverrun train --task xor --hybrid balanced --predictor linear

The run's folder receives config.json, metrics.jsonl, checkpoint/, best/, loss.svg and loss.png.";

/// Options of `riverrun train`. Those left out have the task's defaults, or the run's on `--resume`.
#[derive(Debug, Clone, Default, Args)]
#[command(after_help = TRAIN_HELP)]
pub struct TrainArgs {
    /// Text to learn: files in order, `-` for standard input; none for selective copying
    pub paths: Vec<String>,
    /// Task without a text: selective-copy, adding, xor, digits, or pendulum, a world model of a swinging pendulum [default:
    /// selective-copy]
    #[arg(long, value_name = "NAME", conflicts_with = "paths")]
    pub task: Option<String>,
    /// Network of the task digits: conv (a convolution), conv2 (two), rows (a GRU over rows), or pixels (a minGRU over permuted pixels)
    /// [default: conv]
    #[arg(long, value_name = "NET")]
    pub net: Option<DigitsNet>,
    /// Normalise the channels of the networks conv and conv2 over each batch
    #[arg(long)]
    pub batch_norm: bool,
    /// Folder with MNIST's four IDX files, or those of a data set in its format, for the task digits [default: drawn digits]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Recurrent layer: min-gru, min-lstm, rg-lru, linear, gru, lstm, rnn, or a gate of the linear recurrence; with a matrix for a
    /// state gated-delta-net, kda, delta-net, mamba2, gla, ret-net, hgrn2, mlstm, rwkv6, rwkv7; slstm; or griffin, which mixes
    /// rg-lru with local attention, gpt2, rwkv (RWKV-7), or decoder, the blocks of Qwen3.5 [default: min-gru]
    #[arg(long, value_name = "MODEL")]
    pub model: Option<LanguageModelKind>,
    /// Folder of a published model to go on training from: Qwen3.5, Qwen3-Next, Mamba-2, RWKV-7, xLSTM-7B, RecurrentGemma or GPT-2,
    /// with the tokenizer in it [default learning rate: 5e-5]
    #[arg(long, value_name = "DIR", requires = "paths", conflicts_with_all = ["resume", "model", "heads", "attention_every",
        "window", "layers", "width", "expansion", "time_scale", "dropout", "tokens", "vocabulary"])]
    pub weights: Option<PathBuf>,
    /// Leave the published weights as they are, and learn a change of this rank of every matrix of the blocks (LoRA) [default learning
    /// rate: 5e-4]
    #[arg(long, value_name = "RANK", requires = "weights")]
    pub lora: Option<usize>,
    /// Factor of that change, in which it is divided by the rank [default: the rank]
    #[arg(long, value_name = "ALPHA", requires = "lora")]
    pub lora_alpha: Option<f64>,
    /// Heads of attention, of layers with a matrix for a state, and of slstm [default: of 64 channels]
    #[arg(long, value_name = "N")]
    pub heads: Option<usize>,
    /// Attention in place of every Nth recurrent layer, with rotary positions
    #[arg(long, value_name = "N")]
    pub attention_every: Option<usize>,
    /// Steps that griffin's local attention sees [default: half of the context, at most 1024], or that of --attention-every
    /// [default: all]
    #[arg(long, value_name = "N")]
    pub window: Option<usize>,
    /// Blocks of recurrent layer, or attention, and MLP [default: 3]
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
    /// Sequences in a batch, of all ranks together [default: 16; selective copying 32]
    #[arg(long, value_name = "N")]
    pub batch: Option<usize>,
    /// Parts to compute each batch in, or each rank's share of it, to save memory: gradients are added up, the numbers stay within rounding [default: 1]
    #[arg(long, value_name = "N")]
    pub accumulate: Option<usize>,
    /// Ranks that share every sequence, each with consecutive steps of it, where several ranks train; a divisor of their number. Not
    /// for models with attention [default: 1, whole sequences]
    #[arg(long, value_name = "N", value_parser = names::positive())]
    pub context_parallel: Option<usize>,
    /// Steps of the whole run [default: 2000; selective copying 1000]
    #[arg(long, value_name = "N")]
    pub steps: Option<u64>,
    /// Passes over the training data, in the place of --steps: for a text as many windows as cover it, for images in files each
    /// image once a pass
    #[arg(long, value_name = "N", conflicts_with_all = ["steps", "resume"], value_parser = names::epochs)]
    pub epochs: Option<f64>,
    /// Peak learning rate [default: 2e-3; selective copying 1e-2]
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    pub lr: Option<f64>,
    /// Steps of linear warm-up [default: a tenth of the run, at most 100]
    #[arg(long, value_name = "N")]
    pub warmup: Option<u64>,
    /// Shape of the learning rate after the warm-up: cosine or linear, both to a tenth of the peak; constant; or
    /// step:EVERY:FACTOR, which multiplies it by FACTOR after every EVERY steps [default: cosine]
    #[arg(long, value_name = "SHAPE")]
    pub schedule: Option<Decay>,
    /// Optimizer: adamw, or sgd with --momentum [default: adamw]
    #[arg(long, value_name = "NAME")]
    pub optimizer: Option<OptimizerKind>,
    /// Momentum of --optimizer sgd [default: 0.9]
    #[arg(long, value_name = "M", allow_negative_numbers = true)]
    pub momentum: Option<f32>,
    /// Decay of weight matrices [default: 0.1]
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    pub weight_decay: Option<f64>,
    /// Part of the activations dropped in training [default: 0]
    #[arg(long, value_name = "PART", allow_negative_numbers = true)]
    pub dropout: Option<f64>,
    /// Seed of weights, batches and dropout [default: 0]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Format of the arithmetic: f32, f16, bf16, or auto, which is bf16 on a GPU that has it and f32 elsewhere; weights and
    /// moments stay f32 [default: auto]
    #[arg(long, value_name = "FORMAT")]
    pub dtype: Option<Format>,
    /// States of the linear-recurrent layers saved for the backward pass: all, or none, which recomputes them [default: all]
    #[arg(long, aliases = ["recompute", "checkpoints"], value_name = "all|none")]
    pub saved_states: Option<SavedStates>,
    /// Symbols of the text: chars, bytes, or bpe with --vocabulary [default: chars, or bytes where there are more than 1024]
    #[arg(long, value_name = "KIND")]
    pub tokens: Option<SymbolKind>,
    /// Byte-pair vocabulary, in the form of GPT-2's vocab.json
    #[arg(long, value_name = "FILE", requires = "tokens")]
    pub vocabulary: Option<PathBuf>,
    /// Part of the text that trains; the rest validates [default: 0.9]
    #[arg(long, value_name = "PART", allow_negative_numbers = true)]
    pub split: Option<f64>,
    /// Tokens to copy, in selective copying [default: 8]
    #[arg(long, value_name = "N", conflicts_with = "paths")]
    pub data_tokens: Option<usize>,
    /// Steps between evaluations; each saves a checkpoint [default: 20 a run, 10 to 500 apart]
    #[arg(long, value_name = "N")]
    pub eval_every: Option<u64>,
    /// End the run when N evaluations in a row have not lowered the validation loss [default: never]
    #[arg(long, value_name = "N")]
    pub patience: Option<u64>,
    /// Evaluate an exponential moving average of the weights with this decay per step, such as 0.999; the best model is that of the
    /// average too [default: none]
    #[arg(long, value_name = "DECAY", allow_negative_numbers = true)]
    pub average: Option<f64>,
    /// Checkpoints to keep, the latest included [default: 1]
    #[arg(long, value_name = "N")]
    pub keep: Option<usize>,
    /// Where to compute: auto, cpu, cuda:0, vulkan, ...; see `riverrun devices`
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: String,
    /// Record a step's launches and run them again by one call a step: the same numbers, and faster where launching takes
    /// longer than computing [default: on CUDA]
    #[arg(long, conflicts_with = "no_graph")]
    pub graph: bool,
    /// Launch every step by itself
    #[arg(long)]
    pub no_graph: bool,
    /// On several ranks of CPUs: let each keep the optimizer's moments of a part of the weights, to save memory
    #[arg(long, conflicts_with = "gradients")]
    pub shard_optimizer: bool,
    /// Write the norms of the gradients, in all and by module, into metrics.jsonl
    #[arg(long)]
    pub gradients: bool,
    /// Write the metrics as an event file for TensorBoard too, into the run's folder
    #[arg(long)]
    pub tensorboard: bool,
    /// Memory that the run should stay within, such as 6GB or 512MiB: it warns when it takes more
    #[arg(long, value_name = "SIZE", value_parser = names::bytes)]
    pub memory_budget: Option<u64>,
    /// Show the memory in use, its peak and the largest weights when the run ends
    #[arg(long)]
    pub memory: bool,
    /// Show the time of each part of a step when the run ends; of several ranks, the slowest by name. Steps wait for the device
    /// between their parts, and are not recorded
    #[arg(long, conflicts_with_all = ["graph", "hybrid"])]
    pub profile: bool,
    /// Hybrid training
    #[command(flatten)]
    pub hybrid: HybridArgs,
    /// Predictor of a hybrid run: last-update, average, acceleration, linear, ensemble, or a file of `riverrun hybrid learn`
    /// [default: last-update]
    #[arg(long, value_name = "NAME|FILE", requires = "hybrid", value_parser = PredictorChoice::parse)]
    pub predictor: Option<PredictorChoice>,
    /// Folder of the run [default: runs/TASK-001, -002, ...]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Go on with the run in --out, with its own options; --steps may extend it
    #[arg(long, requires = "out")]
    pub resume: bool,
    /// Go on from the checkpoint after step N, of those that --keep has kept; later ones are removed
    #[arg(long, value_name = "N", requires = "resume")]
    pub from_step: Option<u64>,
}

impl TrainArgs {
    /// The format of the arithmetic that was asked for by name.
    pub fn precision(&self) -> Option<Precision> {
        match self.dtype? {
            Format::Auto => None,
            Format::Of(precision) => Some(precision),
        }
    }

    /// The settings of hybrid training, where the run is to be hybrid.
    pub fn hybrid(&self) -> Option<HybridConfig> {
        let mut config = self.hybrid.config()?;
        if let Some(predictor) = &self.predictor {
            predictor.set(&mut config);
        }
        Some(config)
    }
}

/// Options of `riverrun export`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  riverrun export runs/text-001 --out model.onnx")]
pub struct ExportArgs {
    /// Folder of a run with a recurrent language model
    pub run: PathBuf,
    /// File to write [default: model.onnx in the run's folder]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// Options of `riverrun generate`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Examples:\n  riverrun generate runs/text-001 --prompt 'ROMEO:' --tokens 300\n  \
                  riverrun generate --weights Qwen3.5-0.8B --prompt 'The river' --temperature 0"
)]
pub struct GenerateArgs {
    /// Folder of a run that was trained on text
    #[arg(required_unless_present = "weights")]
    pub run: Option<PathBuf>,
    /// Folder of a published model, with its tokenizer: Qwen3.5, Qwen3-Next, Mamba-2, RWKV-7, xLSTM-7B, RecurrentGemma or GPT-2
    #[arg(long, value_name = "DIR", conflicts_with = "run")]
    pub weights: Option<PathBuf>,
    /// Text to go on from
    #[arg(long, default_value = "")]
    pub prompt: String,
    /// Go on from where the model was when FILE was written, and read the prompt there
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// Write where the model is after the prompt, so that --state need not read it again
    #[arg(long, value_name = "FILE")]
    pub save_state: Option<PathBuf>,
    /// Symbols to generate
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub tokens: usize,
    /// Samples to generate at once; more than one are written one after the other when all are done
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub batch: usize,
    /// Above 1 bolder, below 1 safer, 0 always the most likely symbol
    #[arg(
        long,
        value_name = "T",
        default_value_t = 0.8,
        allow_negative_numbers = true
    )]
    pub temperature: f64,
    /// Draw only from the N most likely symbols, and any as likely as the last of them
    #[arg(long, value_name = "N")]
    pub top_k: Option<usize>,
    /// Seed of the draws
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Where to compute: auto, cpu, cuda:0, vulkan, ...
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: String,
    /// Format of weights and arithmetic: f32, f16 or bf16 [default: f32; of --weights that of the files where it has 16
    /// bits, or bf16 on a GPU]
    #[arg(long, value_name = "FORMAT")]
    pub dtype: Option<Precision>,
    /// On the CPU: weights of 8 or 4 bits, with which a large model takes about 0.6 of the time of 16 bits and less memory; the text is
    /// another one
    #[arg(long, value_name = "N", value_parser = bits)]
    pub bits: Option<Bits>,
    /// Record a step's launches and run them again by one call a symbol: the same text but for rounding, and faster [default: on CUDA]
    #[arg(long, conflicts_with = "no_graph")]
    pub graph: bool,
    /// Launch every step by itself
    #[arg(long)]
    pub no_graph: bool,
}
