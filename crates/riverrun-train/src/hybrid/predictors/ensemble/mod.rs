//! An ensemble of small recurrent world models of the training run.

mod config;
mod file;
mod lesson;
mod net;
mod objective;
#[cfg(all(test, feature = "flex"))]
mod tests;

use std::collections::VecDeque;
use std::path::Path;

use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use riverrun_kernels::rollout::DELTAS;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Forecast, Predictor, continue_mean};
use crate::hybrid::FEATURES;
use crate::hybrid::observation::{Observation, WINDOWS};
use crate::run_dir::{load_module, save_module};
use crate::{Error, Learner, TrainingConfig};
use net::Net;
use objective::{Lessons, read_deltas};

pub use config::EnsembleConfig;
pub(crate) use lesson::Lesson;

/// The files of a checkpoint: weights and both moments.
const FILES: [&str; 3] = ["ensemble.bpk", "ensemble-1.bpk", "ensemble-2.bpk"];

/// The norm that a lesson's gradients are scaled down to where they exceed it.
const CLIP: f64 = 5.0;

/// GRUs that forecast the loss window by window from the features of the training state, by
/// [`rollout`](riverrun::ops::rollout) on the run's device; the state after the last window says how far each layer group
/// moves along its recent mean update.
///
/// The mean over the members is the forecast; how far they are apart decides whether to predict, and how far
/// ([`Forecast`]). After every window of real steps, once there are enough, one lesson: the rollout from before the last
/// [`back`](EnsembleConfig::back) windows is compared with what came, and AdamW moves the weights along its gradients. All
/// lessons have the same shapes, so on CUDA they are recorded once and replayed.
pub struct Ensemble {
    config: EnsembleConfig,
    device: Device,
    learner: Box<Learner<Lessons>>,
    /// Whether the learner was asked to record its steps.
    asked_to_record: bool,
    state: State,
}

/// The part of the state beside weights and moments.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct State {
    /// The last windows, without another change of the weights between them than real steps.
    past: VecDeque<Observation>,
    /// Lessons so far.
    lessons: u64,
}

impl Ensemble {
    /// With random weights, or those of the file to [start](EnsembleConfig::start) from.
    ///
    /// # Errors
    /// Settings that make no sense; a file that cannot be read or has other sizes; a device without the memory.
    pub fn new(config: EnsembleConfig, device: &Device) -> Result<Self, Error> {
        config.check()?;
        Ok(Self {
            learner: Box::new(learner(&config, device)?),
            asked_to_record: false,
            device: device.clone(),
            config,
            state: State::default(),
        })
    }

    /// The settings for an ensemble that starts from a file: its sizes, and the rest of `config`.
    ///
    /// # Errors
    /// A file that cannot be read, or is no ensemble.
    pub fn sizes(path: &Path, config: &EnsembleConfig) -> Result<EnsembleConfig, Error> {
        file::sizes(path, config)
    }

    /// Writes the weights into a file that other runs can [start](EnsembleConfig::start) from: safetensors with the tensors `w`
    /// `[E, 3H, 64]`, `u` `[E, 3H, H]`, `bias` `[E, 3H]` and `heads` `[11, H + S]` in f32.
    ///
    /// # Errors
    /// A device that fails; a disk that is full or refuses.
    pub fn save_file(&self, path: &Path) -> Result<(), Error> {
        file::save(path, &self.learner.working_model())
    }

    /// One step down the gradients of a lesson. Returns its loss, on the device.
    pub(crate) fn take_lesson(&mut self, lesson: &Lesson) -> Result<Tensor<1>, Error> {
        if !std::mem::replace(&mut self.asked_to_record, true)
            && !riverrun::device::is_cpu(&self.device)
            && let Err(error) = self.learner.record_steps()
        {
            tracing::debug!(%error, "lessons of the ensemble are not recorded");
        }
        self.state.lessons += 1;
        self.learner.step(lesson, self.config.lr, &mut |_| ())
    }

    /// For each member, its losses after `windows` windows in units of the loss now, then its delta head's outputs. None where
    /// nothing can be forecast, with a warning where the device fails.
    fn rollout(&self, seen: &Observation, windows: usize) -> Option<Vec<Vec<f32>>> {
        if !lesson::is_usable(seen) {
            return None;
        }
        let features = lesson::relative(seen)?;
        let windows = windows.clamp(1, self.config.windows);
        let read = || -> Result<Vec<f32>, Error> {
            let features = TensorData::new(features, [FEATURES]);
            let features = Tensor::from_data(features, &self.device);
            let found = self.learner.working_model().forecast(features, windows)?;
            let losses = found.trajectory.narrow(1, 1, windows);
            let both = riverrun::device::read(Tensor::cat(vec![losses, found.delta], 1))?;
            Ok(both.iter::<f32>().collect())
        };
        match read() {
            Ok(rows) => Some(
                rows.chunks_exact(windows + DELTAS)
                    .map(<[f32]>::to_vec)
                    .collect(),
            ),
            Err(error) => {
                tracing::warn!(%error, "the ensemble forecasts nothing");
                None
            }
        }
    }

    /// How far each layer group goes in a window, in multiples of its recent mean update. Held back where the loss is expected to
    /// rise.
    pub(crate) fn multiples(&self, seen: &Observation, windows: usize) -> Option<Vec<f64>> {
        let members = self.rollout(seen, windows)?;
        let deltas = members.iter().map(|row| &row[row.len() - DELTAS..]);
        let (multiples, falls) = read_deltas(deltas);
        let sure = (2.0 * falls).min(1.0);
        let of = |group: usize| sure * multiples[group % multiples.len()];
        Some((0..seen.groups.len()).map(of).collect())
    }

    fn remember(&mut self, before: &Observation, after: &Observation) {
        let past = &mut self.state.past;
        if past.back().is_none_or(|last| last.step != before.step) {
            past.clear();
            past.push_back(before.clone());
        }
        past.push_back(after.clone());
        while past.len() > self.config.back + 1 {
            past.pop_front();
        }
    }
}

impl Predictor for Ensemble {
    fn predict(&self, seen: &Observation, windows: f64) -> Vec<[f64; WINDOWS]> {
        let multiples = self.multiples(seen, windows.ceil() as usize);
        let still = || vec![0.0; seen.groups.len()];
        continue_mean(seen, windows, &multiples.unwrap_or_else(still))
    }

    fn forecast(&self, seen: &Observation, windows: usize) -> Option<Forecast> {
        let members = self.rollout(seen, windows)?;
        let losses = members.iter().map(|row| &row[..row.len() - DELTAS]);
        let members: Vec<&[f32]> = losses.collect();
        let forecast = Forecast::new(seen.loss, &members);
        let both = [&forecast.losses, &forecast.spread];
        let finite = both.into_iter().flatten().all(|x| x.is_finite());
        finite.then_some(forecast)
    }

    fn learn(&mut self, before: &Observation, after: &Observation) {
        if ![before, after].into_iter().all(lesson::is_usable) {
            self.state.past.clear();
            return;
        }
        self.remember(before, after);
        if self.state.past.len() <= self.config.back {
            return;
        }
        let past = self.state.past.make_contiguous();
        if let Some(lesson) = Lesson::new(&past[0], &past[1..])
            && let Err(error) = self.take_lesson(&lesson)
        {
            tracing::warn!(%error, "the ensemble learned nothing from a window");
        }
    }

    fn reset(&mut self) {
        match learner(&self.config, &self.device) {
            Ok(learner) => {
                *self.learner = learner;
                self.asked_to_record = false;
                self.state = State::default();
            }
            Err(error) => tracing::warn!(%error, "the ensemble keeps what it has learned"),
        }
    }

    fn save(&self) -> Value {
        serde_json::to_value(&self.state).expect("numbers are JSON")
    }

    fn load(&mut self, saved: Value) -> Result<(), String> {
        self.state = serde_json::from_value(saved).map_err(|error| error.to_string())?;
        Ok(())
    }

    fn save_files(&self, folder: &Path) -> Result<(), Error> {
        let model = self.learner.model();
        let (first, second, _) = self.learner.optimizer().moments(model);
        let all: [Net; 3] = [model.valid(), first, second];
        for (net, name) in all.into_iter().zip(FILES) {
            save_module(net, &folder.join(name))?;
        }
        Ok(())
    }

    fn load_files(&mut self, folder: &Path) -> Result<(), Error> {
        let [weights, first, second] = FILES.map(|name| folder.join(name));
        let model = self.learner.model().clone();
        let first = load_module(model.valid(), &first)?;
        let second = load_module(model.valid(), &second)?;
        let model = load_module(model, &weights)?;
        let lessons = self.state.lessons;
        let moments = [&first, &second];
        self.learner
            .restore(model, moments, lessons as usize, None, lessons);
        Ok(())
    }
}

/// A learner that has learned nothing.
fn learner(config: &EnsembleConfig, device: &Device) -> Result<Learner<Lessons>, Error> {
    let mut training = TrainingConfig::new(1, 1, 1, config.lr);
    training.optimizer.clip = CLIP;
    training.optimizer.weight_decay = 0.0;
    Learner::new(Lessons(config.clone()), &training, device)
}
