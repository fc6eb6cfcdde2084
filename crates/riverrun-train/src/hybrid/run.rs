//! The controller's decisions, carried out on a learner's weights.

use std::path::Path;

use burn::module::{Module, Param, ParamId};
use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::controller::{Controller, Window};
use super::monitor::Recovery;
use super::observation::KEPT;
use super::phase::Action;
use super::predictors::predictor;
use super::trail::{Groups, Trail};
use super::trajectory::Sighting;
use super::{HybridConfig, Observation, Predictor, Status};
use crate::run_dir::{load_module, read_json, save_module, write_json};
use crate::{Error, Learner, Objective};

/// The files of a checkpoint.
const STATE: &str = "hybrid.json";
const TENSORS: &str = "hybrid.bpk";

/// Hybrid training of one learner.
pub(crate) struct Hybrid {
    controller: Controller,
    groups: Groups,
    trail: Trail,
    kept: Kept,
    /// Losses and squared gradient norms of the window, on the device.
    window: Vec<[Tensor<1>; 2]>,
    lrs: Vec<f64>,
}

/// A state to return to.
struct Kept {
    weights: Tensor<1>,
    moments: [Tensor<1>; 2],
    /// Steps that AdamW has counted.
    updates: usize,
}

impl Kept {
    /// Mean and standard deviation of the first moments, and of the second: `[4]`, on the device.
    fn statistics(&self) -> Tensor<1> {
        // Sums take all of a GPU; Burn's mean of a vector takes one plane.
        let mean = |x: Tensor<1>| {
            let count = x.dims()[0].max(1) as f32;
            x.sum() / count
        };
        let parts = self.moments.iter().flat_map(|moments| {
            let middle = mean(moments.clone());
            let off = moments.clone() - middle.clone();
            [middle, mean(off.clone() * off).sqrt()]
        });
        Tensor::cat(parts.collect(), 0)
    }

    fn of<O: Objective>(groups: &Groups, learner: &Learner<O>, weights: Tensor<1>) -> Self {
        let (first, second, updates) = learner.optimizer().moments(learner.model());
        Self {
            weights,
            moments: [groups.vector(&first), groups.vector(&second)],
            updates,
        }
    }

    fn restore<O: Objective>(&self, groups: &Groups, learner: &mut Learner<O>) {
        let kept = learner.records();
        let [first, second] = learner.take_moments();
        let first = groups.put(first, &self.moments[0], kept);
        let second = groups.put(second, &self.moments[1], kept);
        learner.replace(|model| groups.put(model, &self.weights, kept));
        learner.replace_moments([&first, &second], self.updates);
    }
}

/// The outcome of a window.
pub(crate) struct Done {
    /// The losses of its steps that are finite.
    pub losses: Vec<f64>,
    /// A loss that training cannot recover from.
    pub abort: Option<f64>,
}

/// The part of a checkpoint beside the updates.
#[derive(Serialize, Deserialize)]
struct Saved {
    controller: Value,
    /// Updates of the weights among the tensors.
    updates: usize,
}

/// Vectors as a module, to be saved as one is.
#[derive(Module, Debug)]
struct Vectors {
    vectors: Vec<Param<Tensor<1>>>,
}

impl Vectors {
    fn new(vectors: impl Iterator<Item = Tensor<1>>) -> Self {
        // The ids are in the file: the same in every run.
        let ids = (1..).map(ParamId::from);
        Self {
            vectors: vectors
                .zip(ids)
                .map(|(vector, id)| Param::initialized(id, vector))
                .collect(),
        }
    }
}

impl Hybrid {
    /// From a learner as it is, with a predictor in the place of the one configured.
    ///
    /// # Errors
    /// A predictor that cannot be made, such as one from a file that is missing.
    pub fn new<O: Objective>(
        config: HybridConfig,
        own: Option<Box<dyn Predictor>>,
        learner: &mut Learner<O>,
    ) -> Result<Self, Error> {
        let device = learner.device().clone().without_autodiff();
        let predictor = own.map_or_else(|| predictor(&config, &device), Ok)?;
        let controller = Controller::new(config, predictor);
        learner.keep_norms();
        let groups = Groups::of(learner.model());
        let weights = groups.vector(learner.model());
        Ok(Self {
            controller,
            trail: Trail::new(weights.clone()),
            kept: Kept::of(&groups, learner, weights),
            groups,
            window: Vec::new(),
            lrs: Vec::new(),
        })
    }

    /// The next action, `left` steps before the run ends: a window of real steps, or a prediction.
    pub fn next(&mut self, left: u64) -> Action {
        self.controller.next(left)
    }

    /// Steps of a window.
    pub fn window(&self) -> u64 {
        self.controller.config().window
    }

    /// Whether no prediction is being measured: the weights are those to return to.
    pub fn settled(&self) -> bool {
        self.controller.settled()
    }

    /// The factor of the learning rate of real steps.
    pub fn lr_factor(&self) -> f64 {
        self.controller.lr_factor()
    }

    /// The bound of each parameter's gradient norm for the next window, relative to the parameter's own norm.
    pub fn clip(&self) -> Option<f64> {
        self.controller.clip()
    }

    /// The history so far, with the phases since the last call.
    pub fn status(&mut self) -> Status {
        self.controller.status()
    }

    /// Takes in a real step's loss. Nothing waits for the device.
    pub fn step_done<O: Objective>(&mut self, learner: &Learner<O>, loss: Tensor<1>, lr: f64) {
        let square = learner.gradient_square();
        let square = square.unwrap_or_else(|| loss.zeros_like());
        self.window.push([loss, square]);
        self.lrs.push(lr);
    }

    /// Ends a window at step `step`: reads its numbers from the device, all at once, and restores the state before it, or
    /// before the last prediction, where that is the answer.
    ///
    /// # Errors
    /// A device that fails.
    pub fn window_done<O: Objective>(
        &mut self,
        learner: &mut Learner<O>,
        step: u64,
    ) -> Result<Done, Error> {
        let steps = self.window.len();
        let whole = steps as u64 == self.window();
        let weights = self.groups.vector(learner.model());
        let update = self.trail.update(&weights);
        let [losses, squares]: [Vec<Tensor<1>>; 2] = {
            let (losses, squares) = self.window.drain(..).map(|[a, b]| (a, b)).unzip();
            [losses, squares]
        };
        let products = self.trail.products(&self.groups, &update);
        let now = Kept::of(&self.groups, learner, weights.clone());
        let last = [now.statistics(), products];
        let numbers = losses.into_iter().chain(squares).chain(last);
        let numbers = Tensor::cat(numbers.collect(), 0);
        let numbers: Vec<f64> = riverrun::device::read(numbers)?.iter::<f64>().collect();
        let (losses, rest) = numbers.split_at(steps);
        let (squares, rest) = rest.split_at(steps);
        let (moments, products) = rest.split_at(4);
        let finite = squares.iter().copied().filter(|square| square.is_finite());
        let largest = finite.fold(0.0, f64::max);
        // With a scaled loss, gradients that overflow are a step that was skipped, and no failure.
        let skips = learner.scales_loss();
        let norm = |square: &f64| match square.is_finite() || !skips {
            true => square.sqrt(),
            false => largest.sqrt(),
        };
        let gradients: Vec<f64> = squares.iter().map(norm).collect();
        let rows = products.chunks_exact(KEPT);
        let rows = rows.map(|row| row.try_into().expect("a whole row"));
        let verdict = self.controller.window_done(Window {
            step,
            losses,
            gradients: &gradients,
            lrs: &self.lrs,
            moments: std::array::from_fn(|i| moments[i]),
            products: whole.then(|| rows.collect()),
        });
        self.lrs.clear();
        if verdict.recovery.restores() {
            self.kept.restore(&self.groups, learner);
            self.trail.start_from(self.kept.weights.clone());
        } else if whole && verdict.recovery != Recovery::Abort {
            self.trail.end_window(weights, update);
        }
        if verdict.keep {
            self.kept = now;
        }
        let broken = losses.iter().copied().find(|loss| !loss.is_finite());
        Ok(Done {
            losses: losses
                .iter()
                .copied()
                .filter(|loss| loss.is_finite())
                .collect(),
            abort: (verdict.recovery == Recovery::Abort).then_some(broken.unwrap_or(f64::NAN)),
        })
    }

    /// Whether the last action was a prediction, or a window that measures one.
    pub fn predicts(&self) -> bool {
        self.controller.predicts()
    }

    /// What the window that ended at `step` showed, where the run records its trajectory.
    pub fn sighting(&self, step: u64) -> Option<Sighting<&Observation>> {
        let seen = self.controller.sighting(step);
        seen.filter(|_| self.controller.config().trajectory)
    }

    /// Applies the prediction of the next `steps` steps, whose mean learning rate is `lr_ratio` times that of the last window.
    pub fn predict<O: Objective>(&mut self, learner: &mut Learner<O>, steps: u64, lr_ratio: f64) {
        let coefficients = self.controller.predict(steps, lr_ratio);
        let (groups, directions, kept) = (&self.groups, self.trail.directions(), learner.records());
        learner.replace(|model| groups.add(model, &directions, &coefficients, kept));
        self.trail.start_from(self.groups.vector(learner.model()));
    }

    /// Writes what a resumed run needs into the checkpoint of a run that is [settled](Self::settled).
    pub fn save(&self, folder: &Path) -> Result<(), Error> {
        let updates = Vectors::new(self.trail.updates());
        let saved = Saved {
            controller: self.controller.save(),
            updates: updates.vectors.len(),
        };
        write_json(&folder.join(STATE), &saved)?;
        self.controller.predictor().save_files(folder)?;
        save_module(updates, &folder.join(TENSORS))
    }

    /// Takes up what [`save`](Self::save) wrote. The learner was loaded before this was made from it.
    ///
    /// # Errors
    /// Files that are missing or damaged.
    pub fn load(&mut self, folder: &Path) -> Result<(), Error> {
        let path = folder.join(STATE);
        let saved: Saved = read_json(&path)?;
        let loaded = self.controller.load(saved.controller);
        loaded.map_err(|reason| Error::damaged(&path, reason))?;
        if saved.updates > KEPT || self.controller.updates() != saved.updates {
            return Err(Error::damaged(&path, "updates that no run has"));
        }
        let path = folder.join(TENSORS);
        let empty = self.kept.weights.zeros_like();
        let template = Vectors::new((0..saved.updates).map(|_| empty.clone()));
        let loaded = load_module(template, &path)?;
        let updates: Vec<Tensor<1>> = loaded.vectors.iter().map(|vector| vector.val()).collect();
        if updates.iter().any(|update| update.dims() != empty.dims()) {
            return Err(Error::damaged(&path, "updates of another model"));
        }
        self.trail.set_updates(updates);
        self.controller.predictor_mut().load_files(folder)
    }
}
