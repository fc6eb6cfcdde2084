//! Settings of a hybrid run, with three presets.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{EnsembleConfig, Parts};
use crate::Error;

/// Settings of hybrid predictive training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct HybridConfig {
    /// Steps whose summed update of the weights predictors see: the unit in which real steps are done.
    pub window: u64,
    /// Real steps before anything is predicted, a multiple of the window.
    pub warm_up: u64,
    /// Real steps of a full phase, a multiple of the window.
    pub full: u64,
    /// Most steps that one prediction replaces.
    pub max_predict: u64,
    /// Real steps after a prediction, over which its effect is measured; a multiple of the window.
    pub correct: u64,
    /// Least confidence at which a change is predicted, 0 to 1.
    pub confidence: f64,
    /// Deviations of the loss from its baseline, in standard deviations, at which a run counts as diverging.
    pub sigma: f64,
    /// Most predictions without a full phase between them.
    pub in_a_row: u32,
    /// The predictor.
    pub predictor: PredictorKind,
    /// Settings of the predictor [`Ensemble`](PredictorKind::Ensemble).
    pub ensemble: EnsembleConfig,
    /// Whether the run's folder receives `trajectory.jsonl`: a [`Sighting`](super::Sighting) a line, from which
    /// [`learn`](super::learn) teaches predictors of other runs. A window takes about a kilobyte, and 300 bytes for each layer group.
    pub trajectory: bool,
    /// Parts that can be switched off.
    pub parts: Parts,
}

/// The predictors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PredictorKind {
    /// The mean of the last updates, continued: momentum without a gradient.
    #[default]
    LastUpdate,
    /// The mean of the weights at the ends of the last windows.
    Average,
    /// Regularised nonlinear acceleration: the combination of the last weights whose update is least.
    Acceleration,
    /// Ridge regression from the 64 features of the training state.
    Linear,
    /// An ensemble of recurrent networks that forecasts the loss.
    Ensemble,
}

impl Default for HybridConfig {
    fn default() -> Self {
        Self {
            window: 5,
            warm_up: 100,
            full: 20,
            max_predict: 15,
            correct: 5,
            confidence: 0.85,
            sigma: 3.0,
            in_a_row: 5,
            predictor: PredictorKind::default(),
            ensemble: EnsembleConfig::default(),
            trajectory: false,
            parts: Parts::default(),
        }
    }
}

/// A named set of settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// Long full phases, short predictions, high confidence.
    Conservative,
    /// Between the two.
    Balanced,
    /// Short full phases, long predictions, low confidence.
    Aggressive,
    /// No predictions: the run is plain training, and its trajectory is recorded for [`learn`](super::learn).
    Watch,
}

impl Preset {
    /// All presets.
    pub const ALL: [Preset; 4] = [
        Preset::Conservative,
        Preset::Balanced,
        Preset::Aggressive,
        Preset::Watch,
    ];

    /// The name users type.
    pub fn name(self) -> &'static str {
        match self {
            Preset::Conservative => "conservative",
            Preset::Balanced => "balanced",
            Preset::Aggressive => "aggressive",
            Preset::Watch => "watch",
        }
    }

    /// The settings.
    pub fn config(self) -> HybridConfig {
        let (warm_up, full, max_predict, confidence, sigma) = match self {
            Preset::Conservative => (200, 30, 25, 0.90, 2.2),
            Preset::Balanced => (100, 20, 40, 0.85, 2.5),
            Preset::Aggressive => (50, 15, 80, 0.75, 3.5),
            // The confidence of a run stays below 1.
            Preset::Watch => (0, 20, 15, 1.0, 3.0),
        };
        HybridConfig {
            trajectory: self == Preset::Watch,
            warm_up,
            full,
            max_predict,
            confidence,
            sigma,
            ..HybridConfig::default()
        }
    }
}

impl FromStr for Preset {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let find = |preset: &Preset| preset.name() == name;
        Self::ALL.into_iter().find(find).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|preset| preset.name()).collect();
            format!("unknown preset `{name}`; one of: {}", names.join(", "))
        })
    }
}

impl PredictorKind {
    /// All predictors, the cheapest first.
    pub const ALL: [PredictorKind; 5] = [
        PredictorKind::LastUpdate,
        PredictorKind::Average,
        PredictorKind::Acceleration,
        PredictorKind::Linear,
        PredictorKind::Ensemble,
    ];

    /// The name users type.
    pub fn name(self) -> &'static str {
        match self {
            PredictorKind::LastUpdate => "last-update",
            PredictorKind::Average => "average",
            PredictorKind::Acceleration => "acceleration",
            PredictorKind::Linear => "linear",
            PredictorKind::Ensemble => "ensemble",
        }
    }

    /// Whether it learns from the windows of a run.
    pub fn learns(self) -> bool {
        matches!(self, PredictorKind::Linear | PredictorKind::Ensemble)
    }
}

impl fmt::Display for PredictorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PredictorKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let find = |kind: &PredictorKind| kind.name() == name;
        Self::ALL.into_iter().find(find).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|kind| kind.name()).collect();
            format!("unknown predictor `{name}`; one of: {}", names.join(", "))
        })
    }
}

impl HybridConfig {
    /// The bytes that the predictor keeps on the device.
    pub(crate) fn predictor_bytes(&self) -> u64 {
        match self.predictor {
            PredictorKind::Ensemble => self.ensemble.bytes(),
            _ => 0,
        }
    }

    /// The windows of a number of steps.
    pub(super) fn windows(&self, steps: u64) -> u64 {
        steps / self.window
    }

    /// Refuses settings that make no sense.
    ///
    /// # Errors
    /// [`Error::Value`] for the first of them.
    pub fn check(&self) -> Result<(), Error> {
        let (window, in_a_row) = (self.window, u64::from(self.in_a_row));
        let sizes = [
            ("hybrid_window", window),
            ("hybrid_full", self.full),
            ("hybrid_max_predict", self.max_predict),
            ("hybrid_correct", self.correct),
            ("hybrid_in_a_row", in_a_row),
        ];
        if let Some((name, value)) = sizes.into_iter().find(|(_, value)| *value == 0) {
            return Err(Error::value(name, value, "must be at least 1"));
        }
        let phases = [
            ("hybrid_warm_up", self.warm_up),
            ("hybrid_full", self.full),
            ("hybrid_correct", self.correct),
        ];
        let odd = |(_, steps): &(_, u64)| !steps.is_multiple_of(window);
        if let Some((name, steps)) = phases.into_iter().find(odd) {
            let reason = format!("must be a multiple of the window of {window} steps");
            return Err(Error::value(name, steps, reason));
        }
        if !(0.0..=1.0).contains(&self.confidence) {
            let reason = "must be from 0 to 1";
            return Err(Error::value("hybrid_confidence", self.confidence, reason));
        }
        self.ensemble.check()?;
        if !(self.sigma > 0.0 && self.sigma.is_finite()) {
            let reason = "must be a finite number above 0";
            return Err(Error::value("hybrid_sigma", self.sigma, reason));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_valid_and_parse() {
        for preset in Preset::ALL {
            preset.config().check().unwrap();
            assert_eq!(preset.name().parse(), Ok(preset));
        }
        assert!(
            "reckless"
                .parse::<Preset>()
                .unwrap_err()
                .contains("balanced")
        );
        for kind in PredictorKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
            let json = serde_json::to_string(&kind).unwrap();
            assert_eq!(json, format!("\"{kind}\""));
        }
    }

    #[test]
    fn senseless_settings_are_refused() {
        let broken: [fn(&mut HybridConfig); 8] = [
            |config| config.window = 0,
            |config| config.warm_up = 12,
            |config| config.full = 0,
            |config| config.max_predict = 0,
            |config| config.correct = 0,
            |config| config.confidence = 1.5,
            |config| config.confidence = f64::NAN,
            |config| config.sigma = 0.0,
        ];
        for change in broken {
            let mut config = HybridConfig::default();
            change(&mut config);
            assert!(config.check().is_err());
        }
        let cold = HybridConfig {
            warm_up: 0,
            ..HybridConfig::default()
        };
        cold.check().unwrap();
    }
}
