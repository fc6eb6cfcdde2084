//! The parts that make a run.

use burn::tensor::Device;
use riverrun::Neighbours;
use riverrun_models::weights::Published;
use serde::Serialize;
use serde_json::Value;

use crate::hybrid::Predictor;
use crate::learner::check_memory;
use crate::spread::{Ranks, Spread};
use crate::tasks::{Task, TokenTask};
use crate::{Error, Language, Objective, RunConfig, TrainingConfig, compile_ahead};

/// An objective with the batches to learn it from, and how to train.
pub struct Setup<O: Objective> {
    pub(super) objective: O,
    pub(super) task: Box<dyn Task<Batch = O::Batch>>,
    pub(super) training: TrainingConfig,
    /// The content of `config.json`.
    pub(super) config: Value,
    /// In the place of the predictor configured.
    pub(super) predictor: Option<Box<dyn Predictor>>,
    pub(super) spread: Option<Spread>,
}

impl<O: Objective> Setup<O> {
    /// Brings the parts together. `config` describes all of them; the run folder's `config.json` holds it, and
    /// [`RunDir::config`](crate::RunDir::config) reads it again.
    ///
    /// # Errors
    /// A training configuration that makes no sense; a `config` that cannot be written as JSON.
    pub fn new(
        objective: O,
        task: Box<dyn Task<Batch = O::Batch>>,
        training: TrainingConfig,
        config: &impl Serialize,
    ) -> Result<Self, Error> {
        training.check()?;
        let config = serde_json::to_value(config)
            .map_err(|error| Error::Unsupported(format!("the configuration: {error}")))?;
        Ok(Self {
            objective,
            task,
            training,
            config,
            predictor: None,
            spread: None,
        })
    }

    /// With a predictor of one's own for [hybrid training](crate::hybrid), in the place of the one that is configured. Without
    /// effect on a run that is not hybrid.
    pub fn with_predictor(mut self, predictor: Box<dyn Predictor>) -> Self {
        self.predictor = Some(predictor);
        self
    }

    /// Spreads the run over several ranks: each computes its rows of every batch, and the gradients are added up before the
    /// weights move. The batch of the configuration is that of all ranks together.
    ///
    /// Rank 0 has the run's folder: it alone writes there, and the others take the weights, moments and progress from it. The
    /// folder that the others pass to [`Trainer`](crate::Trainer) is a name, [`RunDir::of_another`](crate::RunDir::of_another).
    ///
    /// With `shard_optimizer`, each rank keeps the moments of a part of the parameters, and updates that part; checkpoints are
    /// those of any other run. The norms of gradients by group are not known then.
    ///
    /// # Errors
    /// Hybrid training; a batch whose rows cannot be divided among the ranks; ranks whose configurations differ.
    pub fn spread_over(self, ranks: Box<dyn Ranks>, shard_optimizer: bool) -> Result<Self, Error> {
        let mut spread = Spread::new(ranks);
        spread.shards = shard_optimizer;
        self.spread(spread)
    }

    /// As [`spread_over`](Self::spread_over), with every sequence divided along time among the ranks of a group, as many as
    /// `neighbours` has: each computes its steps, takes the states before them from the rank before, and gives its own to the rank
    /// after. A group has the rows that a rank has otherwise. The numbers are those of whole sequences within rounding, but for
    /// dropout, which draws for each piece. All ranks keep all moments.
    ///
    /// # Errors
    /// As there; an objective that has no [pieces](Objective::piece); ranks that do not make whole groups.
    pub fn spread_over_time(
        self,
        ranks: Box<dyn Ranks>,
        neighbours: Neighbours,
    ) -> Result<Self, Error> {
        let (piece, pieces) = (neighbours.rank(), neighbours.size());
        let batch = self.task.validation_batch(0);
        self.objective.piece(&batch, piece, pieces)?;
        let mut spread = Spread::new(ranks);
        spread.divide_time(neighbours)?;
        self.spread(spread)
    }

    fn spread(mut self, mut spread: Spread) -> Result<Self, Error> {
        let training = &self.training;
        if training.hybrid.is_some() {
            return Err(Error::Spread("hybrid training"));
        }
        if training.average.is_some() {
            return Err(Error::Spread("the average of weights"));
        }
        if spread.shards && self.objective.freezes() {
            return Err(Error::Spread("the optimizer of LoRA's factors"));
        }
        let ((_, size), accumulate) = (spread.rows(), training.accumulate.max(1));
        if !training.batch.is_multiple_of(size * accumulate) {
            let whose = match spread.neighbours() {
                None => "ranks",
                Some(_) => "groups of ranks",
            };
            let reason = match accumulate {
                1 => format!("cannot be divided among {size} {whose}"),
                parts => format!("cannot be divided among {size} {whose} with {parts} parts each"),
            };
            return Err(Error::value("batch", training.batch, reason));
        }
        spread.agree("the configuration", self.config.to_string().as_bytes())?;
        let shards = [u8::from(spread.shards)];
        spread.agree("whether the optimizer is sharded", &shards)?;
        self.spread = Some(spread);
        Ok(self)
    }

    /// Whether the device has the memory for a training step, as far as it is known before one.
    ///
    /// # Errors
    /// [`Error::Memory`] if it has not.
    pub fn check_memory(&self, device: &Device) -> Result<(), Error> {
        check_memory(&self.objective, self.spread.as_ref(), device)
    }

    /// Compiles the kernels of the run's first steps on several cores, as [`compile_ahead`] does, which says what it asks for;
    /// nothing for runs on several ranks. Returns the number of kernels compiled.
    pub fn compile_ahead(&self, device: &Device) -> usize {
        if self.spread.is_some() || riverrun::device::is_cpu(device) {
            return 0;
        }
        let model = self.config.get("model").unwrap_or(&self.config).to_string();
        let batch = self.task.train_batch(0);
        compile_ahead(&self.objective, &self.training, &batch, &model, device)
    }

    /// Whether this process writes the run's folder: the only one, or rank 0 of several.
    pub(super) fn writes(&self) -> bool {
        self.spread.as_ref().is_none_or(|spread| spread.rank() == 0)
    }

    /// The training.
    pub fn training(&self) -> &TrainingConfig {
        &self.training
    }

    /// The batches.
    pub fn task(&self) -> &dyn Task<Batch = O::Batch> {
        &*self.task
    }
}

impl Setup<Language> {
    /// A language model of a run.
    ///
    /// # Errors
    /// A configuration that makes no sense.
    pub fn language(config: &RunConfig, task: Box<dyn TokenTask>) -> Result<Self, Error> {
        config.check()?;
        config.check_vocab()?;
        let objective = Language::new(config, task.has_accuracy());
        Self::new(objective, task, config.training.clone(), config)
    }

    /// With the weights that a new run starts from, of a model of the run's configuration.
    pub fn with_weights(mut self, weights: Published) -> Self {
        self.objective = self.objective.with_weights(weights);
        self
    }
}
