//! Everything that decides the numbers of a run on the pendulum.

use riverrun::nn::RssmConfig;
use riverrun_models::WorldModelConfig;
use serde::{Deserialize, Serialize};

use super::{FORMAT, TrainingConfig};
use crate::tasks::{OBSERVED, Pendulum, PendulumConfig};
use crate::{Dynamics, Error, Setup};

/// A world model that learns a [`Pendulum`]. `config.json` of such a run's folder holds one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PendulumRun {
    /// Version of the run folder's layout.
    pub format: u32,
    /// The data.
    pub task: PendulumTask,
    /// The model.
    pub model: WorldModelConfig,
    /// The training.
    pub training: TrainingConfig,
}

/// The task of a [`PendulumRun`], told by its name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum PendulumTask {
    /// [`tasks::Pendulum`](crate::tasks::Pendulum).
    Pendulum(PendulumConfig),
}

impl Default for PendulumRun {
    /// At a size that two CPU cores learn in about two minutes.
    fn default() -> Self {
        let rssm = RssmConfig::new(64, 1)
            .with_deter(128)
            .with_hidden(64)
            .with_stoch(8)
            .with_classes(8)
            .with_blocks(4)
            .with_prior_layers(1);
        Self {
            format: FORMAT,
            task: PendulumTask::Pendulum(PendulumConfig::default()),
            model: WorldModelConfig::new(OBSERVED, rssm).with_free_nats(0.5),
            training: TrainingConfig::new(16, 40, 800, 3e-3),
        }
    }
}

impl PendulumRun {
    /// The pendulum.
    ///
    /// # Errors
    /// Sizes that make no sense.
    pub fn pendulum(&self) -> Result<Pendulum, Error> {
        let PendulumTask::Pendulum(task) = &self.task;
        let training = &self.training;
        Pendulum::new(
            task.clone(),
            training.context,
            training.batch,
            training.seed,
        )
    }

    /// The parts of the run.
    ///
    /// # Errors
    /// A configuration that makes no sense; a layout of another version.
    pub fn setup(&self) -> Result<Setup<Dynamics>, Error> {
        if self.format != FORMAT {
            let known = format!("this version knows {FORMAT}");
            return Err(Error::value("format", self.format, known));
        }
        self.training.check()?;
        self.model.check()?;
        let widths = [self.model.d_observation, self.model.rssm.d_action];
        if widths != [OBSERVED, 1] {
            let reason = format!("the task has {OBSERVED} and 1");
            let widths = format!("{widths:?}");
            return Err(Error::value("d_observation and d_action", widths, reason));
        }
        let task = Box::new(self.pendulum()?);
        let (sequences, steps) = (self.training.batch, self.training.context);
        let objective = Dynamics::new(self.model.clone()).with_batches(sequences, steps);
        Setup::new(objective, task, self.training.clone(), self)
    }
}
