//! Options of hybrid training, and of its measurement.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use riverrun_train::hybrid::{HybridConfig, Parts, PredictorKind, Preset};

use super::common::Common;

/// Options of hybrid training.
#[derive(Debug, Clone, Default, Args)]
pub struct HybridArgs {
    /// Replace stretches of steps by predicted changes of the weights: conservative, balanced, aggressive, or a JSON file with
    /// settings
    #[arg(long, value_name = "PRESET|FILE", value_parser = hybrid)]
    hybrid: Option<HybridConfig>,
    /// Parts of a hybrid run to switch on, separated by commas: plateau, health, clipping
    #[arg(long, value_name = "PARTS", value_delimiter = ',', requires = "hybrid", value_parser = part)]
    with: Vec<String>,
    /// Parts of a hybrid run to switch off, separated by commas: confidence, bandit, fallback
    #[arg(long, value_name = "PARTS", value_delimiter = ',', requires = "hybrid", value_parser = part)]
    without: Vec<String>,
    /// Check the invariants of a hybrid run at every window of steps
    #[arg(long, requires = "hybrid")]
    check: bool,
}

/// Options of `riverrun bench hybrid`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Examples:\n  riverrun bench hybrid --all --device cpu --hybrid balanced --text shakespeare.txt --report hybrid.txt --json hybrid.json\n  riverrun bench hybrid --device cpu --predictors linear,last-update --rungs digits\n  riverrun bench hybrid --ablate --hybrid aggressive --rungs xor\n  riverrun bench hybrid --latency"
)]
pub struct BenchHybridArgs {
    /// Device and output file
    #[command(flatten)]
    pub common: Common,
    /// Hybrid training
    #[command(flatten)]
    pub hybrid: HybridArgs,
    /// Predictors, separated by commas; plain training is always measured [default: all; with --ablate linear]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub predictors: Vec<PredictorKind>,
    /// Measure the table of all rungs, an ablation of the linear predictor on xor and text, and the latencies, one after
    /// another: about eight minutes on two CPU cores
    #[arg(long, conflicts_with_all = ["ablate", "latency"])]
    pub all: bool,
    /// Write what is printed here too, under the command, the commit and the machine
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Measure each predictor with every part of the method on, and with each one off
    #[arg(long, conflicts_with = "latency")]
    pub ablate: bool,
    /// Measure the microseconds of each piece of the method instead: features, decision, rollout, applied change
    #[arg(long)]
    pub latency: bool,
    /// Tasks, separated by commas [default: xor and digits, and text where --text is given; with --all all three]
    #[arg(long, value_name = "RUNGS", value_delimiter = ',', value_enum)]
    rungs: Vec<Rung>,
    /// Text of the rung text
    #[arg(long, value_name = "FILE")]
    pub text: Option<PathBuf>,
    /// Folder with MNIST's files for the rung digits [default: drawn digits]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Steps of each run [default: 500 of xor, 300 of digits, 800 of text]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: Option<u64>,
    /// Runs of each, with seeds from 0
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    pub seeds: u64,
}

/// A task to measure hybrid training on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Rung {
    /// The exclusive or of two bits
    Xor,
    /// Digits by convolution
    Digits,
    /// Characters of a text, by two layers of minGRU of width 64
    Text,
}

impl BenchHybridArgs {
    /// The tasks to measure.
    pub fn rungs(&self) -> Vec<Rung> {
        match self.rungs.as_slice() {
            [] if self.all || self.text.is_some() => vec![Rung::Xor, Rung::Digits, Rung::Text],
            [] => vec![Rung::Xor, Rung::Digits],
            chosen => chosen.to_vec(),
        }
    }
}

impl Rung {
    /// The steps of a run, few enough that all rungs are measured in minutes.
    pub fn steps(self) -> u64 {
        match self {
            Self::Xor => 500,
            Self::Digits => 300,
            Self::Text => 800,
        }
    }

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Xor => "xor",
            Self::Digits => "digits",
            Self::Text => "text",
        }
    }
}

impl HybridArgs {
    /// The settings, where the run is to be hybrid.
    pub fn config(&self) -> Option<HybridConfig> {
        let mut config = self.hybrid.clone()?;
        for name in &self.with {
            config.parts = config.parts.with(name).unwrap_or(config.parts);
        }
        for name in &self.without {
            config.parts = config.parts.without(name).unwrap_or(config.parts);
        }
        config.parts.check |= self.check;
        Some(config)
    }
}

/// A preset's settings by its name, or those in a file.
fn hybrid(name: &str) -> Result<HybridConfig, String> {
    let unknown = match name.parse::<Preset>() {
        Ok(preset) => return Ok(preset.config()),
        Err(unknown) => unknown,
    };
    if !name.ends_with(".json") {
        return Err(format!("{unknown}, or a file whose name ends in .json"));
    }
    let text = std::fs::read_to_string(name).map_err(|error| error.to_string())?;
    serde_json::from_str(&text).map_err(|error| error.to_string())
}

fn part(name: &str) -> Result<String, String> {
    Parts::default().without(name).map(|_| name.to_string())
}
