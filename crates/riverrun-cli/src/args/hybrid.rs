//! Options of hybrid training.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use riverrun_train::hybrid::{
    Ensemble, EnsembleConfig, HybridConfig, Parts, PredictorKind, Preset,
};

use super::names;

/// Options of `riverrun hybrid`.
#[derive(Debug, Clone, Args)]
pub struct HybridCommand {
    /// What to do
    #[command(subcommand)]
    pub what: HybridAction,
}

/// What `riverrun hybrid` does.
#[derive(Debug, Clone, Subcommand)]
pub enum HybridAction {
    /// Teach an ensemble that forecasts training, from the trajectories of runs
    Learn(LearnArgs),
}

const LEARN_HELP: &str = "\
Example:
  riverrun train --task xor --hybrid watch --out runs/seen
  riverrun hybrid learn runs/seen --out predictor.safetensors
  riverrun train --task xor --hybrid balanced --predictor predictor.safetensors

--hybrid watch trains plainly and records; a hybrid run does where its settings have \"trajectory\": true.";

/// Options of `riverrun hybrid learn`.
#[derive(Debug, Clone, Args)]
#[command(after_help = LEARN_HELP)]
pub struct LearnArgs {
    /// Folders of runs with a trajectory.jsonl
    #[arg(required = true)]
    pub runs: Vec<PathBuf>,
    /// File to write, .safetensors
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Passes over all windows
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub passes: u32,
    /// Members of the ensemble
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = names::positive())]
    pub members: usize,
    /// Hidden units of a member
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = names::positive())]
    pub hidden: usize,
    /// Windows that a lesson goes back
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = names::positive())]
    pub back: usize,
    /// Learning rate
    #[arg(long, value_name = "RATE", default_value_t = 1e-3)]
    pub lr: f64,
    /// Seed of the order of the windows
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Device to learn on
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: String,
}

/// A predictor: one by its name, or the ensemble that `riverrun hybrid learn` wrote into a file.
#[derive(Debug, Clone, PartialEq)]
pub enum PredictorChoice {
    /// By its name.
    Kind(PredictorKind),
    /// From a file, with the sizes there.
    Taught(EnsembleConfig),
}

impl PredictorChoice {
    /// From the name of a predictor or of a file.
    pub fn parse(name: &str) -> Result<Self, String> {
        let unknown = match name.parse() {
            Ok(kind) => return Ok(Self::Kind(kind)),
            Err(unknown) => unknown,
        };
        let path = Path::new(name);
        if !path.exists() && !name.ends_with(".safetensors") {
            return Err(format!("{unknown}; or a file of `riverrun hybrid learn`"));
        }
        let sizes = Ensemble::sizes(path, &EnsembleConfig::default());
        sizes.map(Self::Taught).map_err(|error| error.to_string())
    }

    /// Puts the predictor into settings.
    pub fn set(&self, config: &mut HybridConfig) {
        match self {
            Self::Kind(kind) => config.predictor = *kind,
            Self::Taught(taught) => {
                config.predictor = PredictorKind::Ensemble;
                let own = &mut config.ensemble;
                (own.members, own.hidden) = (taught.members, taught.hidden);
                own.start.clone_from(&taught.start);
            }
        }
    }
}

/// Options of hybrid training.
#[derive(Debug, Clone, Default, Args)]
pub struct HybridArgs {
    /// Replace stretches of steps by predicted changes of the weights: conservative, balanced, aggressive, or a JSON file with
    /// settings; watch predicts nothing and records what predictors see, for `riverrun hybrid learn`
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
