//! Levels of divergence.

use serde::{Deserialize, Serialize};

/// Gradient norms, in baselines, that count as exploding; ten times as much is critical.
pub const EXPLODING: f64 = 100.0;

/// How bad things are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Nothing to see.
    #[default]
    Normal,
    /// Predictions become shorter.
    Caution,
    /// No prediction before the next full phases.
    Warning,
    /// If a prediction is being measured, it is to be taken back.
    Critical,
}

/// A reason for a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Signal {
    /// The loss is far above its baseline.
    Loss,
    /// The gradient norm is far above its baseline.
    Explosion,
    /// The gradient norm is far below its baseline.
    Vanishing,
    /// The loss or the gradient norm is NaN or infinite.
    NotFinite,
    /// The predicted loss was wrong.
    Prediction,
    /// The loss goes up and down at every step.
    Oscillation,
}

/// Levels at 0.7, 1 and 2 thresholds.
pub fn sigma_level(thresholds: f64) -> Level {
    match thresholds {
        t if t >= 2.0 => Level::Critical,
        t if t >= 1.0 => Level::Warning,
        t if t >= 0.7 => Level::Caution,
        _ => Level::Normal,
    }
}

pub fn explosion_level(ratio: f64) -> Level {
    match ratio {
        r if r >= 10.0 * EXPLODING => Level::Critical,
        r if r >= EXPLODING => Level::Warning,
        _ => Level::Normal,
    }
}

pub fn two_levels(value: f64, [caution, warning]: [f64; 2]) -> Level {
    match value {
        v if v >= warning => Level::Warning,
        v if v >= caution => Level::Caution,
        _ => Level::Normal,
    }
}
