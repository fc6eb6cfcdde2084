//! What a run reads, evaluates and keeps on its way: losses, reports, the best model, checkpoints.

use burn::module::Module;

use super::{Evaluation, Observer, Trainer, checkpoint, evaluate};
use crate::hybrid::Hybrid;
use crate::{Error, Objective, Report, Split};

impl<O: Objective> Trainer<O> {
    /// The mean training loss since the last report; starts the next sum.
    pub(super) fn read_losses(&mut self) -> Result<f64, Error> {
        let sum = self.pending_loss()?;
        let steps = std::mem::take(&mut self.progress.pending).1;
        self.losses = None;
        Ok(f64::from(sum) / steps.max(1) as f64)
    }

    /// Reads the sum of losses from the device, and refuses one that is not finite.
    pub(super) fn pending_loss(&self) -> Result<f32, Error> {
        let sum = match self.losses.clone() {
            Some(sum) => riverrun::device::read(sum)?.iter::<f32>().sum::<f32>(),
            None => self.progress.pending.0,
        };
        // A wait that timed out leaves NaN, which is no fault of the learning rate.
        riverrun::device::take_fault(self.learner.device())?;
        if sum.is_finite() {
            Ok(sum)
        } else {
            Err(self.diverged("loss", f64::from(sum)))
        }
    }

    /// The model that evaluations are of, without autodiff: that with the averaged weights, where there is one.
    pub(super) fn evaluated(&self) -> O::Model {
        let model = self.learner.model().valid();
        match &self.average {
            Some(average) => average.of(model),
            None => model,
        }
    }

    pub(super) fn validate(&mut self, observer: &mut dyn Observer) -> Result<Evaluation, Error> {
        let model = self.learner.in_format(&self.evaluated());
        let task = &*self.task;
        let result = evaluate::on_all_ranks(&mut self.learner, &model, task, &mut |i, n| {
            observer.evaluating(i, n)
        })?;
        riverrun::device::take_fault(self.learner.device())?;
        if result.loss.is_finite() {
            Ok(result)
        } else {
            Err(self.diverged("validation loss", result.loss))
        }
    }

    pub(super) fn save_if_best(&mut self, report: &Report) -> Result<(), Error> {
        if self.progress.best.is_none_or(|best| report.loss < best) {
            self.check_weights()?;
            if self.writes() {
                checkpoint::save_best(&self.dir, self.evaluated(), report)?;
            }
            (self.progress.best, self.progress.stale) = (Some(report.loss), 0);
        } else {
            self.progress.stale += 1;
        }
        Ok(())
    }

    pub(super) fn save(&mut self, observer: &mut dyn Observer) -> Result<(), Error> {
        self.progress.pending.0 = self.pending_loss()?;
        self.check_weights()?;
        [self.progress.ranks, self.progress.along_time] = self.learner.layout();
        self.learner.gather_moments()?;
        if self.writes() {
            let hybrid = self.hybrid.as_ref();
            let keep = self.training.keep;
            let beside = (hybrid, self.average.as_ref());
            checkpoint::save(&self.dir, &self.learner, beside, keep, &mut self.progress)?;
            observer.saved(self.progress.step);
        }
        self.learner.forget_moments();
        Ok(())
    }

    fn check_weights(&self) -> Result<(), Error> {
        let sum = checkpoint::weight_sum(&self.learner.model().valid())?;
        if sum.is_finite() {
            Ok(())
        } else {
            Err(self.diverged("weights", sum))
        }
    }

    pub(super) fn add(
        &mut self,
        split: Split,
        (loss, accuracy): (f64, Option<f64>),
        items_per_s: f64,
        (lr, seconds): (f64, f64),
        observer: &mut dyn Observer,
    ) -> Result<Report, Error> {
        let skipped = self.learner.scale().read()?.map(|scale| scale.skipped);
        let norms = match split {
            Split::Train => self.learner.gradient_norms()?,
            Split::Validation => None,
        };
        let hybrid = match split {
            Split::Train => self.hybrid.as_mut().map(Hybrid::status),
            Split::Validation => None,
        };
        let report = Report {
            step: self.progress.step,
            split,
            loss,
            accuracy,
            epoch: self.epochs(),
            skipped,
            gradient: norms.as_ref().map(|norms| norms.total),
            gradients: norms.map(|norms| norms.groups).unwrap_or_default(),
            hybrid,
            tokens_per_s: items_per_s,
            lr,
            seconds,
        };
        if self.writes() {
            self.dir.append(&report)?;
        }
        if let Some(events) = &mut self.events {
            events.append(&report)?;
        }
        observer.report(&report);
        self.reports.push(report.clone());
        Ok(report)
    }

    /// Passes over the training data so far, where they have an end.
    fn epochs(&self) -> Option<f64> {
        let items = self.task.items_per_epoch()?;
        let done = self.progress.step as f64 * self.task.items_per_step() as f64;
        Some(done / items as f64)
    }

    #[cfg(feature = "charts")]
    pub(super) fn draw(&self) -> Result<(), Error> {
        if !self.writes() {
            return Ok(());
        }
        crate::plot::draw(&self.reports, self.task.name(), &self.dir)
    }

    #[cfg(not(feature = "charts"))]
    pub(super) fn draw(&self) -> Result<(), Error> {
        Ok(())
    }

    pub(super) fn diverged(&self, what: &'static str, value: f64) -> Error {
        Error::Diverged {
            what,
            value,
            step: self.progress.step,
            saved: self.dir.checkpoint(),
        }
    }
}
