//! The state of a controller, its inputs and its answers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::hybrid::bandit::{Bandit, CONTEXT};
use crate::hybrid::confidence::Confidence;
use crate::hybrid::features::Features;
use crate::hybrid::invariants::Violation;
use crate::hybrid::judge::Judge;
use crate::hybrid::monitor::{Level, Monitor, Recovery};
use crate::hybrid::observation::{KEPT, Observation, Products};
use crate::hybrid::phase::{Phase, Phases};
use crate::hybrid::plateau::Plateau;
use crate::hybrid::predictors::Forecast;

/// The part of the state that a checkpoint keeps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct State {
    pub phases: Phases,
    pub monitor: Monitor,
    pub confidence: Confidence,
    pub judge: Judge,
    pub bandit: Bandit,
    pub plateau: Plateau,
    pub features: Features,
    /// Inner products of the last updates, one set for each layer group; `updates` counts the updates in them, up to [`KEPT`].
    pub products: Vec<Products>,
    pub updates: usize,
    /// Losses and gradient norms of the last real steps, the oldest first, those that are finite.
    pub losses: Vec<f64>,
    pub gradients: Vec<f64>,
    /// The last observation, from which the next prediction is made.
    pub last: Option<Observation>,
    /// The loss forecast for the next window of real steps.
    #[serde(default)]
    pub forecast: Option<f64>,
    /// The losses that the predictor forecasts from there.
    #[serde(default)]
    pub outlook: Option<Forecast>,
    /// Whether the weights have been changed by something else than real steps since then.
    pub moved: bool,
    /// Whether real steps alone lie between the last observation and the one before it.
    #[serde(default)]
    pub follows: bool,
    /// The prediction whose effect is being measured.
    pub pending: Option<Pending>,
    /// The relative error of the last predicted loss.
    pub error: f64,
    /// Factor on the length of predictions, after cautions.
    pub shorten: f64,
    /// Factor of the learning rate.
    pub lr_factor: f64,
    /// Part of the last windows without a signal.
    pub stability: f64,
    pub level: Level,
    pub counts: Counts,
    /// Steps since the last status, by phase.
    pub phases_since: Vec<(Phase, u64)>,
    pub recoveries_since: Vec<Recovery>,
    pub checked: Checked,
}

/// The values that the invariants are checked against, beyond those of the run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Checked {
    pub intervals: Vec<(f64, f64)>,
    pub found: BTreeMap<Violation, u64>,
}

/// A prediction that was applied.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Pending {
    pub steps: u64,
    /// The loss before it, the deviation of one loss, and the loss predicted.
    pub before: f64,
    pub noise: f64,
    pub predicted: f64,
    pub arm: usize,
    pub context: [f64; CONTEXT],
    /// Losses of the real steps since.
    pub after: Vec<f64>,
}

/// Counts of what has happened so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Counts {
    /// Steps with a forward and a backward pass.
    pub real: u64,
    /// Steps that predictions replaced, those taken back included.
    pub predicted: u64,
    /// Steps of the predictions that were taken back.
    pub taken_back: u64,
    /// Predictions applied.
    pub predictions: u64,
    /// Predictions taken back.
    pub failures: u64,
    /// Windows of real steps that were left out, because a loss or a gradient was not finite.
    pub skipped: u64,
    /// Predictions that the continued last update made, because the chosen predictor was no better.
    pub fallbacks: u64,
}

/// The state of a hybrid run, in a [`Report`](crate::Report) of training.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Status {
    /// The phases since the report before, with their steps.
    pub phases: Vec<(Phase, u64)>,
    /// The recovery actions since then.
    pub recoveries: Vec<Recovery>,
    /// Counts since the run began.
    pub counts: Counts,
    /// Confidence in the next prediction, 0 to 1.
    pub confidence: f64,
    /// The state of the run in one number, 0 to 1.
    pub health: f64,
    /// The level of the last window.
    pub level: Level,
    /// Invariants that did not hold, with the number of windows; see [`Parts::check`](crate::hybrid::Parts::check).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub violations: BTreeMap<Violation, u64>,
}

/// A window of real steps.
#[derive(Debug, Clone)]
pub struct Window<'a> {
    /// Steps done at its end.
    pub step: u64,
    /// Losses, gradient norms and learning rates of its steps.
    pub losses: &'a [f64],
    pub gradients: &'a [f64],
    pub lrs: &'a [f64],
    /// Mean and standard deviation of the optimizer's first moments, and of its second.
    pub moments: [f64; 4],
    /// For each layer group, the inner products of its update with those before it and, last, with itself; none for a window
    /// that the end of the run has cut short.
    pub products: Option<Vec<[f64; KEPT]>>,
}

/// The action after a window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Verdict {
    /// The answer to it.
    pub recovery: Recovery,
    /// Whether the weights are good enough to return to.
    pub keep: bool,
}
