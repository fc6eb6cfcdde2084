//! Saving and loading the state of a run.

use super::average::Average;
use crate::hybrid::Hybrid;
use crate::run_dir::{Progress, checksums, load_module, save_module, write_json};
use crate::{Error, Learner, Objective, Report, RunDir};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{FloatDType, Tensor};

/// The model's file in a checkpoint and in `best/`.
pub(crate) const MODEL: &str = "model.bpk";
const FIRST_MOMENT: &str = "moment-1.bpk";
const SECOND_MOMENT: &str = "moment-2.bpk";
const REPORT: &str = "report.json";

/// Saves everything that a resumed run needs, in the place of the checkpoint before; `keep` of them are there then.
pub(crate) fn save<O: Objective>(
    dir: &RunDir,
    learner: &Learner<O>,
    (hybrid, average): (Option<&Hybrid>, Option<&Average>),
    keep: usize,
    progress: &mut Progress,
) -> Result<(), Error> {
    let model = learner.model();
    let (first, second, updates) = learner.optimizer().moments(model);
    progress.updates = updates;
    progress.scale = learner.scale().read()?;
    dir.replace_checkpoint(keep, progress.step, |folder| {
        save_module(model.valid(), &folder.join(MODEL))?;
        save_module(first, &folder.join(FIRST_MOMENT))?;
        save_module(second, &folder.join(SECOND_MOMENT))?;
        if let Some(hybrid) = hybrid {
            hybrid.save(folder)?;
        }
        if let Some(average) = average {
            average.save(folder)?;
        }
        progress.write(folder)?;
        checksums::write(folder)
    })
}

/// Loads a checkpoint into a fresh learner.
pub(crate) fn load<O: Objective>(
    dir: &RunDir,
    learner: &mut Learner<O>,
) -> Result<Progress, Error> {
    let folder = dir.checkpoint().ok_or_else(|| Error::NoModel {
        dir: dir.path().into(),
        what: "checkpoint",
    })?;
    checksums::check(&folder)?;
    let progress = Progress::read(&folder)?;
    let model = learner.model().clone();
    let moment = model.valid();
    let first = load_module(moment.clone(), &folder.join(FIRST_MOMENT))?;
    let second = load_module(moment, &folder.join(SECOND_MOMENT))?;
    let model = load_module(model, &folder.join(MODEL))?;
    let moments = [&first, &second];
    learner.restore(
        model,
        moments,
        progress.updates,
        progress.scale,
        progress.step,
    );
    Ok(progress)
}

/// Saves the best model so far with its scores.
pub(crate) fn save_best<M: Module>(dir: &RunDir, model: M, report: &Report) -> Result<(), Error> {
    dir.replace_folder("best", |folder| {
        save_module(model, &folder.join(MODEL))?;
        write_json(&folder.join(REPORT), report)?;
        checksums::write(folder)
    })
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
        Some(sum) => Ok(riverrun::device::read(sum)?.iter::<f64>().sum::<f64>()),
        None => Ok(0.0),
    }
}
