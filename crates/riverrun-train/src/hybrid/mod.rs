//! Hybrid predictive training: stretches of steps are replaced by a predicted change of the weights.
//!
//! After a warm-up, [phases](Phase) of real steps alternate with predictions, and every prediction is followed by real steps
//! that measure it. Where they show that it did harm, the weights and moments from before it come back.
//!
//! **What is predicted.** Every [`window`](HybridConfig::window) steps the device subtracts two copies of the weights: a
//! window's update. A [`Predictor`] sees the inner products of each layer group's last four updates, and the 64 features
//! of the training state; it answers with one number for each update. Their sum, weighted by these numbers, is added to the
//! weights. So a prediction cannot leave the space of the last four updates: it says how far to go, not where to.
//! Layer groups are found from the model's tree. AdamW's moments stay as they are.
//!
//! **What decides.** How well a predictor would have predicted each window's update is measured whether it is used or not; a
//! predictor with a larger error than the continued last update is replaced by that. The measured agreement, less what the
//! noise of the batches takes from it, the errors of the losses predicted so far and the steadiness of the loss make the
//! confidence, and the confidence the length of a prediction. With the [ensemble](Ensemble), which forecasts the loss, the
//! agreement is that of its members, and no prediction is longer than they agree.
//!
//! **What is learned across runs.** A run can record what predictors see of it ([`trajectory`](HybridConfig::trajectory)); [`learn`]
//! teaches an ensemble from such records, and other runs [start](EnsembleConfig::start) from it.
//!
//! [`Parts`] of the method are switched on and off by the settings.
//!
//! **What is kept** on the device: the weights at the last window, four to five updates, and the weights and moments to go
//! back to, ten times the weights in all. A few numbers for each group and step are read, once a window. Steps may be
//! [recorded](crate::Learner::record_steps), as long as adaptive clipping is off.
//!
//! **What a prediction costs.** No forward and no backward pass runs for it, so there are no activations to keep or to move to
//! the host, and no format of the arithmetic to choose: the net computes in the run's format
//! ([`TrainingConfig::dtype`](crate::TrainingConfig)) in every phase that has real steps. A prediction is one
//! multiply-add for each weight and update, in the `f32` of the weights, in a few launches for all of them.

mod bandit;
mod confidence;
mod config;
mod controller;
mod features;
mod health;
mod invariants;
mod judge;
#[cfg(feature = "check")]
pub mod latency;
mod lessons;
mod monitor;
mod observation;
mod parts;
mod phase;
mod plateau;
mod predictors;
mod run;
mod trail;
mod trajectory;

pub use config::{HybridConfig, PredictorKind, Preset};
pub use controller::{Counts, Status};
pub use invariants::Violation;
pub use lessons::{LearnConfig, Learned, Score, learn};
pub use monitor::{Level, Recovery};
pub use observation::{Gram, Observation, WINDOWS};
pub use parts::Parts;
pub(crate) use phase::Action;
pub use phase::Phase;
pub use predictors::{Ensemble, EnsembleConfig, Forecast, Predictor};
pub(crate) use run::Hybrid;
pub(crate) use trail::Groups;
pub use trajectory::Sighting;

/// Features of the training state that predictors see.
pub const FEATURES: usize = 64;
