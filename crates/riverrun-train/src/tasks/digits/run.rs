//! A run of the task.

use serde::{Deserialize, Serialize};

use super::{Digits, DigitsConfig};
use crate::{DigitsNet, DigitsObjective, Error, Setup, TrainingConfig};

/// The layout of `config.json` that this version writes and reads.
const FORMAT: u32 = 1;

/// A run of the task: `config.json` of its folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DigitsRun {
    /// Version of the layout.
    pub format: u32,
    /// The name of the task.
    pub task: DigitsTask,
    /// The network.
    pub net: DigitsNet,
    /// Whether the channels of convolutions are normalised over each batch.
    #[serde(default)]
    pub batch_norm: bool,
    /// The images.
    pub data: DigitsConfig,
    /// The training.
    pub training: TrainingConfig,
}

/// The name of the task, as `config.json` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum DigitsTask {
    /// [`Digits`].
    Digits,
}

impl DigitsRun {
    /// A network on drawn digits, with the steps that it needs there.
    pub fn new(net: DigitsNet) -> Self {
        let (steps, lr) = match net {
            DigitsNet::Conv | DigitsNet::Conv2 => (400, 3e-3),
            DigitsNet::Rows => (600, 3e-3),
            DigitsNet::Pixels => (600, 5e-3),
        };
        Self {
            format: FORMAT,
            task: DigitsTask::Digits,
            net,
            batch_norm: false,
            data: DigitsConfig::default(),
            training: TrainingConfig::new(64, 1, steps, lr),
        }
    }

    /// The run's parts.
    ///
    /// # Errors
    /// A value that makes no sense; files that cannot be read or are not in MNIST's format.
    pub fn setup(&self) -> Result<Setup<DigitsObjective>, Error> {
        if self.format != FORMAT {
            let known = format!("this version knows {FORMAT}");
            return Err(Error::value("format", self.format, known));
        }
        self.training.check()?;
        if self.batch_norm && !self.net.convolves() {
            let reason = "the networks conv and conv2 have it alone";
            return Err(Error::value("batch_norm", self.batch_norm, reason));
        }
        let task = Digits::new(&self.data, self.training.batch, self.training.seed)?;
        let objective = DigitsObjective::new(self.net, self.batch_norm, self.training.batch);
        Setup::new(objective, Box::new(task), self.training.clone(), self)
    }
}
