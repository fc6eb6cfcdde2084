//! Predictors of weight changes.
//!
//! A predictor says how far each layer group moves along its own last updates, and what the loss will be then. It knows no
//! weight, so it cannot find a direction that the last updates do not span.

mod acceleration;
mod average;
mod ensemble;
mod forecast;
mod last_update;
mod linear;

use std::path::Path;

use burn::tensor::Device;

use acceleration::Acceleration;
use average::Average;
pub(crate) use ensemble::Lesson;
pub use ensemble::{Ensemble, EnsembleConfig};
pub use forecast::Forecast;
pub use last_update::LastUpdate;
use linear::Linear;

use super::observation::{Gram, Observation, RECENT, WINDOWS};
use super::{HybridConfig, PredictorKind};
use crate::Error;

/// Predicts the change of the weights over some windows of steps.
pub trait Predictor: Send {
    /// For each layer group, the multiple of each of the last updates, the oldest first, that the next `windows` windows add
    /// to the weights. Numbers that are not finite count as no change.
    fn predict(&self, seen: &Observation, windows: f64) -> Vec<[f64; WINDOWS]>;

    /// The losses after each of the next windows of real steps. None for a straight line through the last losses: the confidence is
    /// then the agreement of predictions with the updates that came.
    fn forecast(&self, seen: &Observation, windows: usize) -> Option<Forecast> {
        let _ = (seen, windows);
        None
    }

    /// Whether a prediction is meant to be the next updates, and is judged by them: one with a larger error than the continued last
    /// update is replaced by that. Of others it is known only once they are applied what they do to the loss.
    fn is_judged(&self) -> bool {
        true
    }

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

    /// Writes the part of the learned state that is too large for [`save`](Self::save) into files of the checkpoint's folder.
    ///
    /// # Errors
    /// A device that fails; a disk that is full or refuses.
    fn save_files(&self, folder: &Path) -> Result<(), Error> {
        let _ = folder;
        Ok(())
    }

    /// Takes up what [`save_files`](Self::save_files) wrote, after [`load`](Self::load).
    ///
    /// # Errors
    /// Files that are missing or damaged.
    fn load_files(&mut self, folder: &Path) -> Result<(), Error> {
        let _ = folder;
        Ok(())
    }
}

/// The predictor of a run on a device, as it starts.
///
/// # Errors
/// As [`Ensemble::new`].
pub fn predictor(config: &HybridConfig, device: &Device) -> Result<Box<dyn Predictor>, Error> {
    Ok(match config.predictor {
        PredictorKind::LastUpdate => Box::new(LastUpdate),
        PredictorKind::Average => Box::new(Average),
        PredictorKind::Acceleration => Box::new(Acceleration),
        PredictorKind::Linear => Box::new(Linear::default()),
        PredictorKind::Ensemble => Box::new(Ensemble::new(config.ensemble.clone(), device)?),
    })
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
