//! Saving and loading the state of a run.

use std::path::Path;

use burn::module::{Module, ModuleVisitor, Param};
use burn::store::ModuleRecord;
use burn::tensor::{FloatDType, Tensor};
use riverrun::models::LanguageModel;
use serde::{Deserialize, Serialize};

use crate::run_dir::{read_json, write_json};
use crate::{Error, Learner, LossScale, Report, RunDir, ScaleRecord};

/// The model's file in a checkpoint and in `best/`.
pub(crate) const MODEL: &str = "model.bpk";
const FIRST_MOMENT: &str = "moment-1.bpk";
const SECOND_MOMENT: &str = "moment-2.bpk";
const PROGRESS: &str = "progress.json";
const REPORT: &str = "report.json";

/// Where a run is. With the weights and moments, all that the next step depends on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// Steps done.
    pub step: u64,
    /// Steps that AdamW has counted.
    pub updates: usize,
    /// Time taken so far.
    pub seconds: f64,
    /// Sum of the training losses since the last report, and of how many steps.
    pub pending: (f32, u64),
    /// The loss scale, where there is one.
    #[serde(default)]
    pub scale: Option<ScaleRecord>,
    /// The lowest validation loss so far.
    pub best: Option<f64>,
}

/// Saves everything that a resumed run needs, in the place of the checkpoint before.
pub(crate) fn save(dir: &RunDir, learner: &Learner, progress: &mut Progress) -> Result<(), Error> {
    let model = learner.model();
    let (first, second, updates) = learner.optimizer.moments(model);
    progress.updates = updates;
    progress.scale = learner.scale.read()?;
    dir.replace_folder("checkpoint", |folder| {
        save_module(model.valid(), &folder.join(MODEL))?;
        save_module(first, &folder.join(FIRST_MOMENT))?;
        save_module(second, &folder.join(SECOND_MOMENT))?;
        write_json(&folder.join(PROGRESS), progress)
    })
}

/// Loads a checkpoint into a fresh learner.
pub(crate) fn load(dir: &RunDir, learner: &mut Learner) -> Result<Progress, Error> {
    let none = || Error::NoModel {
        dir: dir.path().into(),
        what: "checkpoint",
    };
    let folder = dir.checkpoint().ok_or_else(none)?;
    let progress: Progress = read_json(&folder.join(PROGRESS))?;
    let model = learner.model().clone();
    let moment = model.valid();
    let first = load_module(moment.clone(), &folder.join(FIRST_MOMENT))?;
    let second = load_module(moment, &folder.join(SECOND_MOMENT))?;
    learner
        .optimizer
        .load_moments(&first, &second, progress.updates);
    if let Some(scale) = progress.scale {
        learner.scale = LossScale::from_record(scale, learner.device());
    }
    learner.set_model(load_module(model, &folder.join(MODEL))?);
    Ok(progress)
}

/// Saves the best model so far with what it scored.
pub(crate) fn save_best(dir: &RunDir, model: LanguageModel, report: &Report) -> Result<(), Error> {
    dir.replace_folder("best", |folder| {
        save_module(model, &folder.join(MODEL))?;
        write_json(&folder.join(REPORT), report)
    })
}

pub(crate) fn save_module<M: Module>(module: M, path: &Path) -> Result<(), Error> {
    module
        .into_record()
        .save(path)
        .map_err(|error| Error::write(path, error))
}

pub(crate) fn load_module<M: Module>(module: M, path: &Path) -> Result<M, Error> {
    if !path.is_file() {
        let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
        return Err(Error::read(path, missing));
    }
    let record = ModuleRecord::load(path).map_err(|error| Error::damaged(path, error))?;
    module
        .try_load_record(record)
        .map_err(|error| Error::damaged(path, error))
}

/// Every weight of a model, in its order, read from the device.
pub fn weights<M: Module>(model: &M) -> Vec<f32> {
    struct Collect(Vec<f32>);
    impl ModuleVisitor for Collect {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.extend(param.val().into_data().iter::<f32>());
        }
    }
    let mut collect = Collect(Vec::new());
    model.visit(&mut collect);
    collect.0
}

/// The sum of all weights: NaN or infinite if any of them is.
pub(crate) fn weight_sum<M: Module>(model: &M) -> Result<f64, Error> {
    struct Sum(Option<Tensor<1>>);
    impl ModuleVisitor for Sum {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let sum = param.val().cast(FloatDType::F32).sum();
            self.0 = Some(match self.0.take() {
                Some(before) => before + sum,
                None => sum,
            });
        }
    }
    let mut sum = Sum(None);
    model.visit(&mut sum);
    match sum.0 {
        Some(sum) => sum.try_into_scalar().map_err(Error::device),
        None => Ok(0.0),
    }
}
