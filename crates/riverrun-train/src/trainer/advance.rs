//! The next piece of a run: one step, or in a hybrid run a window of steps, or a prediction.

use std::time::Instant;

use super::Trainer;
use crate::hybrid::{Action, Hybrid};
use crate::{Error, Objective, Schedule};

impl<O: Objective> Trainer<O> {
    /// Goes on by one piece, and gives the number of real steps in it.
    pub(super) fn advance(&mut self, schedule: &Schedule) -> Result<usize, Error> {
        let Some(mut hybrid) = self.hybrid.take() else {
            self.step(schedule.at(self.progress.step))?;
            return Ok(1);
        };
        let start = Instant::now();
        let done = self.advance_hybrid(&mut hybrid, schedule);
        if hybrid.predicts() {
            self.predicting += start.elapsed();
        }
        self.hybrid = Some(hybrid);
        done
    }

    /// Whether every change of the weights so far was computed or has been accepted: no prediction is under test.
    pub(super) fn settled(&self) -> bool {
        self.hybrid.as_ref().is_none_or(Hybrid::settled)
    }

    /// One step: forward, backward, update. Nothing waits for the device, unless the parts are timed.
    fn step(&mut self, lr: f64) -> Result<(), Error> {
        let loss = match &mut self.profile {
            None => {
                let batch = self.task.train_batch(self.progress.step);
                self.learner.step(&batch, lr, &mut |_| ())?
            }
            Some(profile) => {
                let mut watch = profile.step();
                let batch = self.task.train_batch(self.progress.step);
                watch.batch();
                let device = self.learner.device().clone().without_autodiff();
                let loss = self
                    .learner
                    .step(&batch, lr, &mut |part| watch.part(part, &device))?;
                self.learner.wait()?;
                watch.done()?;
                loss
            }
        };
        self.losses = Some(match self.losses.take() {
            Some(sum) => sum + loss,
            None => loss,
        });
        self.progress.step += 1;
        self.progress.pending.1 += 1;
        Ok(())
    }

    fn advance_hybrid(&mut self, hybrid: &mut Hybrid, schedule: &Schedule) -> Result<usize, Error> {
        let left = self.training.steps - self.progress.step;
        let steps = match hybrid.next(left) {
            Action::Predict { steps } => {
                let step = self.progress.step;
                let rate = |from: u64, to: u64| {
                    let sum: f64 = (from..to).map(|step| schedule.at(step)).sum();
                    sum / (to - from).max(1) as f64
                };
                let before = rate(step.saturating_sub(hybrid.window()), step);
                let ratio = rate(step, step + steps) / before;
                let ratio = if ratio.is_finite() { ratio } else { 1.0 };
                hybrid.predict(&mut self.learner, steps, ratio);
                self.progress.step += steps;
                return Ok(0);
            }
            Action::Train => hybrid.window().min(left),
        };
        self.learner.clip_adaptively(hybrid.clip());
        for _ in 0..steps {
            let lr = schedule.at(self.progress.step) * hybrid.lr_factor();
            let batch = self.task.train_batch(self.progress.step);
            let loss = self.learner.step(&batch, lr, &mut |_| ())?;
            hybrid.step_done(&self.learner, loss, lr);
            self.progress.step += 1;
        }
        let done = hybrid.window_done(&mut self.learner, self.progress.step)?;
        // A wait that timed out leaves NaN, which is no fault of the training.
        riverrun::device::take_fault(self.learner.device())?;
        if let Some(seen) = hybrid.sighting(self.progress.step) {
            self.dir.append_sighting(&seen)?;
        }
        if let Some(loss) = done.abort {
            return Err(self.diverged("loss", loss));
        }
        self.progress.pending.0 += done.losses.iter().sum::<f64>() as f32;
        self.progress.pending.1 += done.losses.len() as u64;
        Ok(steps as usize)
    }
}
