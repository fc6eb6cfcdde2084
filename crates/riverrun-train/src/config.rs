//! Everything that decides the numbers of a run.

use riverrun::models::{CellKind, LanguageModelConfig};
use riverrun::ops::Checkpoints;
use serde::{Deserialize, Serialize};

use crate::tasks::{Corpus, SelectiveCopyConfig, TextConfig};
use crate::{Error, OptimizerConfig, Precision, Schedule};

/// The layout of run folders that this version writes and reads.
const FORMAT: u32 = 1;

/// A run: its task, its model, its training. `config.json` of a run folder holds one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunConfig {
    /// Version of the run folder's layout.
    pub format: u32,
    /// What is learned.
    pub task: TaskConfig,
    /// What learns.
    pub model: LanguageModelConfig,
    /// How.
    pub training: TrainingConfig,
}

/// Which task, with its options.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum TaskConfig {
    /// [`tasks::SelectiveCopy`](crate::tasks::SelectiveCopy).
    SelectiveCopy(SelectiveCopyConfig),
    /// [`tasks::Text`](crate::tasks::Text).
    Text(TextConfig),
}

/// How a model is trained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainingConfig {
    /// Sequences in a batch.
    pub batch: usize,
    /// Length of a sequence; for selective copying, its number of blanks.
    pub context: usize,
    /// Steps of the whole run.
    pub steps: u64,
    /// Peak learning rate.
    pub lr: f64,
    /// Steps over which the learning rate rises to its peak.
    pub warmup: u64,
    /// AdamW and clipping.
    pub optimizer: OptimizerConfig,
    /// Seed of the weights, the batches and dropout.
    pub seed: u64,
    /// Format of the arithmetic.
    pub dtype: Precision,
    /// What is kept of the recurrent layers' states for the backward pass.
    #[serde(default)]
    pub checkpoints: Checkpoints,
    /// Steps between evaluations; each also saves a checkpoint.
    pub eval_every: u64,
    /// Steps between reports of the training loss.
    pub report_every: u64,
}

impl RunConfig {
    /// Selective copying at a size that two CPU cores learn in about two minutes: 8 data tokens among 64
    /// blanks, where the paper has 16 among 4096.
    pub fn selective_copy() -> Self {
        Self {
            format: FORMAT,
            task: TaskConfig::SelectiveCopy(SelectiveCopyConfig { data_tokens: 8 }),
            model: LanguageModelConfig::new(16, 64, 3)
                .with_cell(CellKind::MinGru)
                .with_expansion(4)
                .with_time_scale(64),
            training: TrainingConfig::new(32, 64, 1000, 1e-2),
        }
    }

    /// A language model of a text that was read from `sources`: 3 layers of width 128.
    ///
    /// `split` is the part of the text that trains.
    pub fn text(sources: Vec<String>, corpus: &Corpus, split: f64) -> Self {
        let task = TextConfig::describe(sources, corpus, split);
        let model =
            LanguageModelConfig::new(task.vocabulary.len(), 128, 3).with_cell(CellKind::MinGru);
        Self {
            format: FORMAT,
            task: TaskConfig::Text(task),
            model,
            training: TrainingConfig::new(16, 256, 2000, 2e-3),
        }
    }

    /// Checks what can be checked without the text or the device.
    ///
    /// # Errors
    /// A value that makes no sense, by its name on the command line; a layout of another version.
    pub fn check(&self) -> Result<(), Error> {
        let (training, model) = (&self.training, &self.model);
        let positive = [
            ("--batch", training.batch),
            ("--context", training.context),
            ("--layers", model.layers),
            ("--width", model.width),
            ("--expansion", model.expansion),
            ("--time-scale", model.time_scale),
            ("--steps", training.steps as usize),
            ("--eval-every", training.eval_every as usize),
            ("the report interval", training.report_every as usize),
        ];
        if let Some((name, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(Error::Invalid(format!("{name} must be at least 1")));
        }
        let ranges = [
            ("--lr", training.lr, 0.0, f64::MAX),
            (
                "--weight-decay",
                training.optimizer.weight_decay,
                0.0,
                f64::MAX,
            ),
            ("--dropout", model.dropout, 0.0, 0.99),
        ];
        for (name, value, low, high) in ranges {
            if !(low..=high).contains(&value) {
                return Err(Error::Invalid(format!(
                    "{name} {value} is out of its range"
                )));
            }
        }
        if training.checkpoints == Checkpoints::Every(0) {
            return Err(Error::Invalid("--checkpoints must be at least 1".into()));
        }
        if self.format != FORMAT {
            return Err(Error::Invalid(format!(
                "the run's layout is version {}, this program knows version {FORMAT}",
                self.format
            )));
        }
        Ok(())
    }
}

impl TrainingConfig {
    /// Sizes, a peak learning rate, and the defaults for the rest.
    pub fn new(batch: usize, context: usize, steps: u64, lr: f64) -> Self {
        let mut config = Self {
            batch,
            context,
            steps,
            lr,
            warmup: 0,
            optimizer: OptimizerConfig::default(),
            seed: 0,
            dtype: Precision::F32,
            checkpoints: Checkpoints::All,
            eval_every: 1,
            report_every: 1,
        };
        config.set_steps(steps);
        config
    }

    /// Sets the number of steps, and the warm-up and intervals that suit it: a tenth of the run up to
    /// 100 steps of warm-up, 20 evaluations 10 to 500 steps
    /// apart, 100 reports at most 50 steps apart.
    pub fn set_steps(&mut self, steps: u64) {
        self.steps = steps;
        self.warmup = (steps / 10).min(100);
        self.eval_every = (steps / 20).clamp(10, 500);
        self.report_every = (steps / 100).clamp(1, 50);
    }

    /// The learning rate over the run.
    pub fn schedule(&self) -> Schedule {
        Schedule {
            peak: self.lr,
            warmup: self.warmup,
            steps: self.steps,
        }
    }
}
