//! Predictors of weight changes.
//!
//! A predictor says how far each layer group moves along its own last updates, and what the loss will be then. It knows no
//! weight, so it cannot find a direction that the last updates do not span.

mod last_update;
mod linear;

pub use last_update::LastUpdate;
use linear::Linear;

use super::PredictorKind;
use super::observation::{Gram, Observation, RECENT, WINDOWS};

/// Predicts the change of the weights over some windows of steps.
pub trait Predictor: Send {
    /// For each layer group, the multiple of each of the last updates, the oldest first, that the next `windows` windows add
    /// to the weights. Numbers that are not finite count as no change.
    fn predict(&self, seen: &Observation, windows: f64) -> Vec<[f64; WINDOWS]>;

    /// Learns from two observations one window apart, with real steps between them.
    fn learn(&mut self, before: &Observation, after: &Observation) {
        let _ = (before, after);
    }

    /// Forgets what it has learned.
    fn reset(&mut self) {}

    /// The learned state, for a checkpoint.
    fn save(&self) -> serde_json::Value {
        serde_json::Value::Null
    }

    /// Takes up what [`save`](Self::save) gave.
    ///
    /// # Errors
    /// A value of another predictor or version, in words.
    fn load(&mut self, saved: serde_json::Value) -> Result<(), String> {
        let _ = saved;
        Ok(())
    }
}

/// A predictor that has learned nothing.
pub fn predictor(kind: PredictorKind) -> Box<dyn Predictor> {
    match kind {
        PredictorKind::LastUpdate => Box::new(LastUpdate),
        PredictorKind::Linear => Box::new(Linear::default()),
    }
}

/// Continues each group's recent mean update by a learned multiple a window.
fn continue_mean(seen: &Observation, windows: f64, multiples: &[f64]) -> Vec<[f64; WINDOWS]> {
    let total = windows * seen.lr_ratio;
    let group = |(gram, multiple): (&Gram, &f64)| match gram.usable() {
        true => RECENT.map(|weight| weight * multiple.clamp(0.0, 1.5) * total),
        false => [0.0; WINDOWS],
    };
    seen.groups.iter().zip(multiples).map(group).collect()
}
