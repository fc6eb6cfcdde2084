//! Options of hybrid training.

use clap::Args;
use riverrun_train::hybrid::{HybridConfig, Parts, Preset};

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
