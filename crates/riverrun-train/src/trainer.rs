//! The training loop.
//!
//! The loop reads nothing back from the device but at a report: losses are added up there. Whatever a
//! step needs is a function of the configuration, the step's number, the weights and AdamW's moments,
//! so a run that was stopped and resumed gives the numbers of one that was not.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use riverrun::models::LanguageModel;

use crate::checkpoint::{self, Progress};
use crate::evaluate::{Evaluation, evaluate};
use crate::tasks::Task;
use crate::{Error, Learner, Observer, Plan, Report, RunConfig, RunDir, Split, plot};

/// A run that is ready to go (on).
pub struct Trainer {
    config: RunConfig,
    task: Box<dyn Task>,
    dir: RunDir,
    device: Device,
    state: State,
    reports: Vec<Report>,
}

/// What changes from step to step.
struct State {
    learner: Learner,
    progress: Progress,
    /// Sum of the losses since the last report, on the device: `[1]`.
    losses: Option<Tensor<1>>,
}

impl State {
    fn model(&self) -> &LanguageModel {
        self.learner.model()
    }
}

/// How a run ended.
#[derive(Debug)]
pub struct Outcome {
    /// Whether the last step was done; if not, the run was asked to stop, and a checkpoint was saved.
    pub finished: bool,
    /// Steps done.
    pub step: u64,
    /// The last evaluation.
    pub last_validation: Option<Report>,
    /// The evaluation with the lowest loss, whose model is in `best/`.
    pub best_validation: Option<Report>,
    /// The model as it is after the last step, without autodiff.
    pub model: LanguageModel,
}

impl Trainer {
    /// Starts a new run in a new folder.
    ///
    /// # Errors
    /// A configuration that makes no sense; a device that lacks the format; a folder that cannot be
    /// written.
    pub fn create(
        config: RunConfig,
        task: Box<dyn Task>,
        dir: RunDir,
        device: &Device,
    ) -> Result<Self, Error> {
        config.check()?;
        let learner = Learner::new(&config, device)?;
        dir.write_config(&config)?;
        let state = State {
            learner,
            progress: Progress::default(),
            losses: None,
        };
        let device = device.clone().without_autodiff();
        Ok(Self {
            config,
            task,
            dir,
            device,
            state,
            reports: Vec::new(),
        })
    }

    /// Takes up a run where its checkpoint left it. `config` is the run's own, or the same with more
    /// steps.
    ///
    /// # Errors
    /// As [`create`](Self::create); a folder without a checkpoint, or with one that is damaged.
    pub fn resume(
        config: RunConfig,
        task: Box<dyn Task>,
        dir: RunDir,
        device: &Device,
    ) -> Result<Self, Error> {
        config.check()?;
        let mut learner = Learner::new(&config, device)?;
        let progress = checkpoint::load(&dir, &mut learner)?;
        let device = device.clone().without_autodiff();
        let losses =
            (progress.pending.1 > 0).then(|| Tensor::from_floats([progress.pending.0], &device));
        dir.write_config(&config)?;
        let reports = dir.cut_metrics(progress.step)?;
        let state = State {
            learner,
            progress,
            losses,
        };
        Ok(Self {
            config,
            task,
            dir,
            device,
            state,
            reports,
        })
    }

    /// With steps that are recorded on the device: see [`Learner::record_steps`].
    ///
    /// # Errors
    /// As there.
    pub fn with_recorded_steps(mut self) -> Result<Self, Error> {
        self.state.learner.record_steps(&self.config)?;
        Ok(self)
    }

    /// Trains to the end, or until `stop` is set, which is looked at after every step. Either way the
    /// state is saved.
    ///
    /// # Errors
    /// A loss or weights that are no longer finite, after which the checkpoint and the best model are
    /// those of before; a disk that is full or refuses.
    pub fn run(mut self, observer: &mut dyn Observer, stop: &AtomicBool) -> Result<Outcome, Error> {
        observer.begin(&Plan {
            done: self.state.progress.step,
            steps: self.config.training.steps,
            tokens_per_step: self.task.tokens_per_step(),
            parameters: self.state.model().num_params(),
        });
        let finished = self.train(observer, stop);
        observer.end();
        let finished = finished?;
        self.draw()?;
        let validations = || {
            self.reports
                .iter()
                .filter(|report| report.split == Split::Validation)
        };
        Ok(Outcome {
            finished,
            step: self.state.progress.step,
            last_validation: validations().next_back().cloned(),
            best_validation: validations()
                .min_by(|a, b| a.loss.total_cmp(&b.loss))
                .cloned(),
            model: self.state.model().valid(),
        })
    }

    fn train(&mut self, observer: &mut dyn Observer, stop: &AtomicBool) -> Result<bool, Error> {
        let training = self.config.training.clone();
        let schedule = training.schedule();
        let before = self.state.progress.seconds;
        let began = Instant::now();
        let seconds = || before + began.elapsed().as_secs_f64();
        let mut clock = Clock::new();
        while self.state.progress.step < training.steps {
            let lr = schedule.at(self.state.progress.step);
            self.step(lr)?;
            clock.steps += 1;
            let step = self.state.progress.step;
            observer.step(step);

            let last = step == training.steps;
            let stopping = stop.load(Ordering::Relaxed) && !last;
            let evaluating = step.is_multiple_of(training.eval_every) || last;
            if step.is_multiple_of(training.report_every) || evaluating {
                let loss = self.read_losses()?;
                let tokens = clock.steps * self.task.tokens_per_step();
                let tokens_per_s = tokens as f64 / clock.start.elapsed().as_secs_f64();
                self.add(
                    Split::Train,
                    (loss, None),
                    tokens_per_s,
                    (lr, seconds()),
                    observer,
                )?;
                clock = Clock::new();
            }
            if evaluating {
                let result = self.validate(observer)?;
                let scores = (result.loss, result.accuracy);
                let report = self.add(
                    Split::Validation,
                    scores,
                    result.tokens_per_s,
                    (lr, seconds()),
                    observer,
                )?;
                self.keep_if_best(&report)?;
                self.draw()?;
            }
            if evaluating || stopping {
                self.state.progress.seconds = seconds();
                self.save(observer)?;
                clock = Clock::new();
            }
            if stopping {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// One step: forward, backward, update. Nothing waits for the device.
    fn step(&mut self, lr: f64) -> Result<(), Error> {
        let Self {
            config,
            task,
            device,
            state,
            ..
        } = self;
        let step = state.progress.step;
        let batch = task.train_batch(step);
        if config.model.dropout > 0.0 {
            // Dropout draws from the device's own generator; seeding it by step ties it to the step.
            device.seed(dropout_seed(config.training.seed, step));
        }
        let loss = state.learner.step(&batch, lr, &mut |_| ())?;
        state.losses = Some(match state.losses.take() {
            Some(sum) => sum + loss,
            None => loss,
        });
        state.progress.step += 1;
        state.progress.pending.1 += 1;
        Ok(())
    }

    /// The mean training loss since the last report; starts the next sum.
    fn read_losses(&mut self) -> Result<f64, Error> {
        let sum = self.pending_loss()?;
        let steps = std::mem::take(&mut self.state.progress.pending).1;
        self.state.losses = None;
        Ok(f64::from(sum) / steps.max(1) as f64)
    }

    /// Reads the sum of losses from the device, and refuses one that is not finite.
    fn pending_loss(&self) -> Result<f32, Error> {
        let sum = match self.state.losses.clone() {
            Some(sum) => sum.try_into_scalar::<f32>().map_err(Error::device)?,
            None => 0.0,
        };
        if sum.is_finite() {
            Ok(sum)
        } else {
            Err(self.diverged("loss", f64::from(sum)))
        }
    }

    fn validate(&self, observer: &mut dyn Observer) -> Result<Evaluation, Error> {
        let model = self.state.learner.working_model();
        let result = evaluate(&model, &*self.task, &self.device, &mut |i, n| {
            observer.evaluating(i, n)
        })?;
        if result.loss.is_finite() {
            Ok(result)
        } else {
            Err(self.diverged("validation loss", result.loss))
        }
    }

    fn keep_if_best(&mut self, report: &Report) -> Result<(), Error> {
        if self
            .state
            .progress
            .best
            .is_none_or(|best| report.loss < best)
        {
            self.check_weights()?;
            checkpoint::save_best(&self.dir, self.state.model().valid(), report)?;
            self.state.progress.best = Some(report.loss);
        }
        Ok(())
    }

    fn save(&mut self, observer: &mut dyn Observer) -> Result<(), Error> {
        self.state.progress.pending.0 = self.pending_loss()?;
        self.check_weights()?;
        let State {
            learner, progress, ..
        } = &mut self.state;
        checkpoint::save(&self.dir, learner, progress)?;
        observer.saved(self.state.progress.step);
        Ok(())
    }

    fn check_weights(&self) -> Result<(), Error> {
        let sum = checkpoint::weight_sum(&self.state.model().valid())?;
        if sum.is_finite() {
            Ok(())
        } else {
            Err(self.diverged("weights", sum))
        }
    }

    fn add(
        &mut self,
        split: Split,
        (loss, accuracy): (f64, Option<f64>),
        tokens_per_s: f64,
        (lr, seconds): (f64, f64),
        observer: &mut dyn Observer,
    ) -> Result<Report, Error> {
        let step = self.state.progress.step;
        let skipped = self.state.learner.scale.read()?.map(|scale| scale.skipped);
        let report = Report {
            step,
            split,
            loss,
            accuracy,
            skipped,
            tokens_per_s,
            lr,
            seconds,
        };
        self.dir.append(&report)?;
        observer.report(&report);
        self.reports.push(report.clone());
        Ok(report)
    }

    fn draw(&self) -> Result<(), Error> {
        plot::draw(&self.reports, self.task.name(), &self.dir)
    }

    fn diverged(&self, what: &'static str, value: f64) -> Error {
        let kept = match self.dir.checkpoint() {
            Some(folder) => format!("the last good state is in {}", folder.display()),
            None => "no checkpoint had been saved".to_string(),
        };
        Error::Diverged {
            what,
            value,
            step: self.state.progress.step,
            kept,
        }
    }
}

/// Counts the steps between two reports. An evaluation comes right after a report, and the clock
/// starts anew after it, so no evaluation or saving is in a rate.
struct Clock {
    start: Instant,
    steps: usize,
}

impl Clock {
    fn new() -> Self {
        Self {
            start: Instant::now(),
            steps: 0,
        }
    }
}

/// A seed for each step that shares nothing visible with its neighbours (SplitMix64).
fn dropout_seed(seed: u64, step: u64) -> u64 {
    let mut z = seed ^ step.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
