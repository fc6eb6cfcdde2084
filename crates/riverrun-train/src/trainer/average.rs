//! The average of a run's weights over its last steps.

use std::path::Path;

use burn::module::{Module, Param};
use burn::tensor::Tensor;

use crate::Error;
use crate::hybrid::Groups;
use crate::run_dir::{load_module, save_module};

/// The file in a checkpoint.
const FILE: &str = "average.bpk";
/// Steps between two additions to the average.
const EVERY: u64 = 10;

/// An exponential moving average of all weights. A model with averaged weights is nearly that of a lower learning rate: its loss is
/// below that of the last weights while the rate is high.
///
/// Sources: Polyak & Juditsky, *Acceleration of Stochastic Approximation by Averaging* (1992); Kaddour, *Stop Wasting My Time! Saving
/// Days of ImageNet and BERT Training with Latest Weight Averaging* (2022).
pub(crate) struct Average {
    groups: Groups,
    /// All weights in one vector, in `f32`.
    weights: Tensor<1>,
    /// Part of the average that is left after a step.
    decay: f64,
    /// The step of the last addition.
    step: u64,
}

#[derive(Module, Debug)]
struct Saved {
    weights: Param<Tensor<1>>,
}

impl Average {
    /// Starts from a model's weights after `step` steps.
    pub fn new<M: Module>(model: &M, decay: f64, step: u64) -> Self {
        let groups = Groups::of(model);
        Self {
            weights: groups.vector(model),
            groups,
            decay,
            step,
        }
    }

    /// Takes up the average of a checkpoint.
    ///
    /// # Errors
    /// A file that is missing or damaged.
    pub fn load(mut self, checkpoint: &Path) -> Result<Self, Error> {
        let empty = Saved {
            weights: Param::from_tensor(self.weights.zeros_like()),
        };
        let saved = load_module(empty, &checkpoint.join(FILE))?;
        self.weights = saved.weights.val();
        Ok(self)
    }

    /// Writes the average into a checkpoint.
    ///
    /// # Errors
    /// A disk that is full or refuses.
    pub fn save(&self, checkpoint: &Path) -> Result<(), Error> {
        let weights = Param::from_tensor(self.weights.clone());
        save_module(Saved { weights }, &checkpoint.join(FILE))
    }

    /// Adds the weights after `step` steps, where [`EVERY`] steps have passed. Early on the average is shorter: of addition `n` at most
    /// `(1 + n) / (10 + n)` of the average before is left.
    pub fn add<M: Module>(&mut self, model: &M, step: u64) {
        if step / EVERY == self.step / EVERY {
            return;
        }
        let (since, additions) = ((step - self.step) as f64, (step / EVERY) as f64);
        let young = (1.0 + additions) / (10.0 + additions);
        let kept = self.decay.powf(since).min(young);
        let now = self.groups.vector(model);
        self.weights = self.weights.clone().mul_scalar(kept) + now.mul_scalar(1.0 - kept);
        self.step = step;
    }

    /// The model with the averaged weights; `model` is without autodiff.
    pub fn of<M: Module>(&self, model: M) -> M {
        self.groups.put(model, &self.weights, false)
    }
}
