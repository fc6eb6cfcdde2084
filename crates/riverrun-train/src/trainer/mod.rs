//! The training loop.
//!
//! The loop reads nothing back from the device but at a report: losses are added up there. Whatever a
//! step needs is a function of the configuration, the step's number, the weights and AdamW's moments,
//! so a run that was stopped and resumed gives the numbers of one that was not.

mod advance;
mod average;
pub(crate) mod checkpoint;
mod evaluate;
mod observer;
mod profile;
mod report;
mod setup;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::tensor::{Device, Tensor};

use crate::hybrid::{Hybrid, HybridConfig, Status};
use crate::run_dir::{Events, Progress};
use crate::spread;
use crate::tasks::Task;
use crate::{Error, Language, Learner, Objective, Report, RunDir, Split, TrainingConfig};

use average::Average;
pub use evaluate::{Evaluation, evaluate, evaluate_model};
pub use observer::{Observer, Plan};
use profile::Profile;
pub use profile::{PARTS, PartSeconds, slowest};
pub use setup::Setup;

/// A run that is ready to start or to go on.
pub struct Trainer<O: Objective = Language> {
    task: Box<dyn Task<Batch = O::Batch>>,
    training: TrainingConfig,
    dir: RunDir,
    learner: Learner<O>,
    /// Where stretches of steps are predicted.
    hybrid: Option<Hybrid>,
    /// Time in predictions, and in the real steps that measure them.
    predicting: Duration,
    progress: Progress,
    /// Sum of the losses since the last report, on the device: `[1]`. A hybrid run reads them and has none.
    losses: Option<Tensor<1>>,
    reports: Vec<Report>,
    /// The times of steps, where they are taken.
    profile: Option<Profile>,
    /// The average of the weights, where it is evaluated in their place.
    average: Option<Average>,
    /// The reports as TensorBoard reads them, where they are asked for.
    events: Option<Events>,
    /// Whether the run began here, so that its folder is removed if it fails before its first checkpoint.
    fresh: bool,
}

/// How a run ended.
#[derive(Debug)]
pub struct Outcome<M> {
    /// Whether the run came to its end, by its last step or by its [patience](TrainingConfig::patience); if not, it was asked to
    /// stop, and a checkpoint was saved.
    pub finished: bool,
    /// Steps done.
    pub step: u64,
    /// The last evaluation.
    pub last_validation: Option<Report>,
    /// The evaluation with the lowest loss, whose model is in `best/`.
    pub best_validation: Option<Report>,
    /// The summary of a hybrid run's predictions.
    pub hybrid: Option<Status>,
    /// Seconds in predictions, and in the real steps that measure them, of a hybrid run.
    pub predicting: f64,
    /// The parts of a step on every rank, where they were [timed](Trainer::with_profile).
    pub profile: Vec<PartSeconds>,
    /// The model after the last step, or with the [average](TrainingConfig::average) of its weights, without autodiff.
    pub model: M,
}

impl<O: Objective> Trainer<O> {
    /// Starts a new run in a new folder. Where it fails before the first checkpoint, here or later, the folder is removed.
    ///
    /// # Errors
    /// A device that lacks the format or the memory; a folder that cannot be written.
    pub fn create(setup: Setup<O>, dir: RunDir, device: &Device) -> Result<Self, Error> {
        let (writes, mut progress) = (setup.writes(), Progress::none());
        let begin = || {
            let (training, spread) = (&setup.training, setup.spread);
            let mut learner = Learner::on_ranks(setup.objective, training, device, spread)?;
            spread::share(&mut learner, &mut progress)?;
            if writes {
                dir.write_config(&setup.config)?;
            }
            Ok(learner)
        };
        let mut learner = begin().inspect_err(|_: &Error| dir.discard_unless_begun())?;
        let average = setup.training.average;
        let average = average.map(|decay| Average::new(&learner.model().valid(), decay, 0));
        let hybrid = setup.training.hybrid.clone();
        let begin = |config| Hybrid::new(config, setup.predictor, &mut learner);
        let hybrid = hybrid.map(begin).transpose();
        let hybrid = hybrid.inspect_err(|_| dir.discard_unless_begun())?;
        Ok(Self {
            task: setup.task,
            training: setup.training,
            dir,
            learner,
            hybrid,
            predicting: Duration::ZERO,
            progress,
            losses: None,
            reports: Vec::new(),
            profile: None,
            average,
            events: None,
            fresh: true,
        })
    }

    /// Takes up a run where its checkpoint left it; one that was killed before its first checkpoint starts again. The setup
    /// is the run's own, or the same with other steps.
    ///
    /// # Errors
    /// As [`create`](Self::create); a folder that another program uses; a checkpoint that is damaged; fewer steps than were
    /// done. Nothing has been changed then.
    pub fn resume(setup: Setup<O>, dir: RunDir, device: &Device) -> Result<Self, Error> {
        let writes = setup.writes();
        let dir = if writes { dir.lock()? } else { dir };
        let done = if writes { dir.steps_done()? } else { 0 };
        let steps = setup.training.steps;
        if steps < done {
            return Err(Error::StepsDone { done, steps });
        }
        let (training, spread) = (&setup.training, setup.spread);
        let mut learner = Learner::on_ranks(setup.objective, training, device, spread)?;
        let checkpoint = dir.checkpoint().filter(|_| writes);
        let mut progress = match checkpoint {
            Some(_) => checkpoint::load(&dir, &mut learner)?,
            None => Progress::none(),
        };
        spread::share(&mut learner, &mut progress)?;
        let mut hybrid = setup.training.hybrid.clone();
        if checkpoint.is_some()
            && let Some(config) = &mut hybrid
        {
            // The checkpoint has what was learned since.
            config.ensemble.start = None;
        }
        let begin = |config| Hybrid::new(config, setup.predictor, &mut learner);
        let mut hybrid = hybrid.map(begin).transpose()?;
        if let (Some(hybrid), Some(folder)) = (&mut hybrid, &checkpoint) {
            hybrid.load(folder)?;
        }
        let average = setup.training.average;
        let start = |decay| Average::new(&learner.model().valid(), decay, progress.step);
        let average = match (average.map(start), &checkpoint) {
            (Some(average), Some(folder)) => Some(average.load(folder)?),
            (average, _) => average,
        };
        let device = device.clone().without_autodiff();
        let pending = progress.pending.1 > 0 && hybrid.is_none();
        let losses = pending.then(|| Tensor::from_floats([progress.pending.0], &device));
        let mut reports = Vec::new();
        if writes {
            reports = dir.cut_metrics(progress.step)?;
            dir.cut_trajectory(progress.step)?;
            dir.write_config(&setup.config)?;
        }
        Ok(Self {
            task: setup.task,
            training: setup.training,
            dir,
            learner,
            hybrid,
            predicting: Duration::ZERO,
            progress,
            losses,
            reports,
            profile: None,
            average,
            events: None,
            fresh: false,
        })
    }

    /// Lets steps be recorded on the device: see [`Learner::record_steps`].
    ///
    /// # Errors
    /// As there.
    pub fn record_steps(&mut self) -> Result<(), Error> {
        let clips = |hybrid: &HybridConfig| hybrid.parts.clipping;
        if self.training.hybrid.as_ref().is_some_and(clips) {
            let reason = "adaptive clipping changes its bound between steps";
            return Err(Error::Recording(reason.into()));
        }
        self.learner.record_steps()
    }

    /// As [`record_steps`](Self::record_steps), for a run that is not to be without: where it fails, a new run's folder is
    /// removed.
    ///
    /// # Errors
    /// As there.
    pub fn with_recorded_steps(mut self) -> Result<Self, Error> {
        match self.record_steps() {
            Ok(()) => Ok(self),
            Err(error) => {
                self.discard();
                Err(error)
            }
        }
    }

    /// With the norms of gradients, in all and by group, in each report of training: see [`Learner::watch_gradients`].
    pub fn with_gradient_norms(mut self) -> Self {
        self.learner.watch_gradients();
        self
    }

    /// Writes each report into an event file in the run's folder too, for TensorBoard: one file for the whole run, however often it
    /// was resumed. The tags are `loss/train`, `loss/validation`, `accuracy/…`, `tokens_per_second/…`, `learning_rate`,
    /// `gradient_norm`, and `gradient_norm/…` by module.
    ///
    /// # Errors
    /// A disk that is full or refuses.
    pub fn with_tensorboard(mut self) -> Result<Self, Error> {
        if self.writes() {
            let events = Events::start(&self.dir, &self.reports);
            self.events = Some(events.inspect_err(|_| self.discard())?);
        }
        Ok(self)
    }

    /// Times the parts of each step on every rank. Steps wait for the device between their parts; they are not recorded.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for hybrid training.
    pub fn with_profile(mut self) -> Result<Self, Error> {
        if self.hybrid.is_some() {
            self.discard();
            let reason = "the parts of steps in hybrid training are not timed";
            return Err(Error::Unsupported(reason.into()));
        }
        self.profile = Some(Profile::default());
        Ok(self)
    }

    /// Whether this process writes the run's folder.
    fn writes(&self) -> bool {
        self.learner.place().0 == 0
    }

    fn discard(&self) {
        if self.fresh {
            self.dir.discard_unless_begun();
        }
    }

    /// Trains to the end, or until `stop` is set, which is looked at after every step. Either way the
    /// state is saved.
    ///
    /// # Errors
    /// A loss or weights that are no longer finite, after which the checkpoint and the best model are
    /// those of before; a disk that is full or refuses.
    pub fn run(
        mut self,
        observer: &mut dyn Observer,
        stop: &AtomicBool,
    ) -> Result<Outcome<O::Model>, Error> {
        let ranks = self.learner.layout();
        observer.begin(&Plan {
            done: self.progress.step,
            steps: self.training.steps,
            items_per_step: self.task.items_per_step(),
            parameters: self.learner.model().num_params(),
            ranks,
            ranks_before: match self.progress.step {
                0 => ranks,
                _ => [self.progress.ranks, self.progress.along_time],
            },
        });
        let finished = self.train(observer, stop);
        observer.end();
        let finished = finished.inspect_err(|_| self.discard())?;
        self.draw()?;
        let profile = match self.profile.take() {
            Some(profile) => self.learner.of_all_ranks(profile.medians())?,
            None => Vec::new(),
        };
        let validations = || {
            self.reports
                .iter()
                .filter(|report| report.split == Split::Validation)
        };
        Ok(Outcome {
            finished,
            step: self.progress.step,
            last_validation: validations().next_back().cloned(),
            best_validation: validations()
                .min_by(|a, b| a.loss.total_cmp(&b.loss))
                .cloned(),
            predicting: self.predicting.as_secs_f64(),
            hybrid: self
                .reports
                .iter()
                .rev()
                .find_map(|report| report.hybrid.clone()),
            profile,
            model: self.evaluated(),
        })
    }

    fn train(&mut self, observer: &mut dyn Observer, stop: &AtomicBool) -> Result<bool, Error> {
        let training = self.training.clone();
        let schedule = training.learning_rate();
        let before = self.progress.seconds;
        let began = Instant::now();
        let seconds = || before + began.elapsed().as_secs_f64();
        let mut clock = Clock::new();
        // Steps up to which reports and evaluations are done.
        let mut settled = self.progress.step;
        while self.progress.step < training.steps {
            self.learner.ask_to_stop(stop.load(Ordering::Relaxed));
            clock.steps += self.advance(&schedule)?;
            let step = self.progress.step;
            observer.step(step);
            if !self.settled() {
                continue;
            }
            if let Some(average) = &mut self.average {
                average.add(&self.learner.model().valid(), step);
            }
            let due = |every: u64| step / every > settled / every;
            let lr = schedule.at(step - 1);
            let last = step == training.steps;
            let stopping = self.learner.stopping(stop.load(Ordering::Relaxed)) && !last;
            let evaluating = due(training.eval_every) || last;
            let reporting =
                (due(training.report_every) || evaluating) && self.progress.pending.1 > 0;
            if reporting || stopping {
                self.learner.wait_for_ranks()?;
            }
            if reporting {
                let loss = self.read_losses()?;
                let items = clock.steps * self.task.items_per_step();
                let items_per_s = items as f64 / clock.start.elapsed().as_secs_f64();
                let scores = (loss, None);
                self.add(Split::Train, scores, items_per_s, (lr, seconds()), observer)?;
                clock = Clock::new();
            }
            settled = step;
            if evaluating || stopping {
                self.learner.agree_on_weights()?;
            }
            if evaluating {
                let result = self.validate(observer)?;
                let scores = (result.loss, result.accuracy);
                let report = self.add(
                    Split::Validation,
                    scores,
                    result.items_per_s,
                    (lr, seconds()),
                    observer,
                )?;
                self.save_if_best(&report)?;
                self.draw()?;
            }
            if evaluating || stopping {
                self.progress.seconds = seconds();
                self.save(observer)?;
                clock = Clock::new();
            }
            if stopping {
                return Ok(false);
            }
            let stale = self.progress.stale;
            if evaluating && training.patience.is_some_and(|most| stale >= most) {
                return Ok(true);
            }
        }
        Ok(true)
    }
}

/// Counts the steps between two reports. An evaluation comes right after a report, and the clock
/// restarts after it, so no evaluation or saving is in a rate.
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
