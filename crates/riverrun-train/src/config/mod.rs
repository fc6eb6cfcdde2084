//! Everything that decides the numbers of a run.

mod memory;
mod pendulum;

pub use memory::MemoryPlan;
pub use pendulum::{PendulumRun, PendulumTask};
use riverrun::ops::SavedStates;
use riverrun_models::{AnyLanguageModelConfig, LanguageModelConfig, LoraConfig, RecurrentKind};
use serde::{Deserialize, Serialize};

use crate::hybrid::HybridConfig;
use crate::schedule::{Decay, Schedule};
use crate::tasks::{Corpus, SelectiveCopy, SelectiveCopyConfig, TextConfig};
use crate::{Error, OptimizerConfig, OptimizerKind, Precision};

/// The layout of run folders that this version writes and reads.
const FORMAT: u32 = 1;

/// A run: its task, its model, its training. `config.json` of a run folder holds one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunConfig {
    /// Version of the run folder's layout.
    pub format: u32,
    /// The data.
    pub task: TaskConfig,
    /// The model.
    pub model: AnyLanguageModelConfig,
    /// The folder of the published weights that the model began with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
    /// The factors that learn in place of those weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora: Option<LoraConfig>,
    /// The training.
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

impl TaskConfig {
    /// The names of the tasks, `task.kind` in a run's configuration.
    pub const NAMES: [&str; 2] = ["selective-copy", "text"];
}

fn one() -> usize {
    1
}

fn is_one(parts: &usize) -> bool {
    *parts == 1
}

/// How a model is trained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainingConfig {
    /// Sequences in a batch.
    pub batch: usize,
    /// Parts that each batch is computed in, one after the other, to save memory: the gradients of all are added up before
    /// the weights move. The numbers are those of the whole batch within rounding.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub accumulate: usize,
    /// Length of a sequence; for selective copying, its number of blanks.
    pub context: usize,
    /// Steps of the whole run.
    pub steps: u64,
    /// Peak learning rate.
    pub lr: f64,
    /// Steps over which the learning rate rises to its peak.
    pub warmup: u64,
    /// Shape of the learning rate after that.
    #[serde(default)]
    pub schedule: Decay,
    /// AdamW or SGD, and clipping.
    pub optimizer: OptimizerConfig,
    /// Seed of the weights, the batches and dropout.
    pub seed: u64,
    /// Format of the arithmetic.
    pub dtype: Precision,
    /// States of the recurrent layers that are saved for the backward pass; the others are recomputed.
    #[serde(default, alias = "checkpoints", alias = "recompute")]
    pub saved_states: SavedStates,
    /// Steps between evaluations; each also saves a checkpoint.
    pub eval_every: u64,
    /// Evaluations without a lower loss after which a run ends before its last step; `None` for no such end.
    #[serde(default)]
    pub patience: Option<u64>,
    /// Decay per step, 0 to 1, of an exponential moving average of the weights, which evaluations and the best model then use in place
    /// of the weights. `None` for no average.
    #[serde(default)]
    pub average: Option<f64>,
    /// Checkpoints kept, the latest included.
    #[serde(default = "one")]
    pub keep: usize,
    /// Steps between reports of the training loss.
    pub report_every: u64,
    /// Hybrid predictive training: see [`hybrid`](crate::hybrid).
    #[serde(default)]
    pub hybrid: Option<HybridConfig>,
}

impl RunConfig {
    /// Selective copying at a size that two CPU cores learn in about two minutes: 8 data tokens among 64
    /// blanks, where the paper has 16 among 4096.
    pub fn selective_copy() -> Self {
        Self {
            format: FORMAT,
            task: TaskConfig::SelectiveCopy(SelectiveCopyConfig { data_tokens: 8 }),
            model: LanguageModelConfig::new(16, 64, 3)
                .with_cell(RecurrentKind::MinGru)
                .with_expansion(4)
                .with_time_scale(64)
                .into(),
            weights: None,
            lora: None,
            training: TrainingConfig::new(32, 64, 1000, 1e-2),
        }
    }

    /// A language model of a text that was read from `sources`: 3 layers of width 128.
    ///
    /// `split` is the part of the text that trains.
    pub fn text(sources: Vec<String>, corpus: &Corpus, split: f64) -> Self {
        Self::of_text(TextConfig::describe(sources, corpus, split))
    }

    /// As [`text`](Self::text), of a text that has been described.
    pub fn of_text(task: TextConfig) -> Self {
        let model = LanguageModelConfig::new(task.vocabulary.len(), 128, 3)
            .with_cell(RecurrentKind::MinGru);
        Self {
            format: FORMAT,
            task: TaskConfig::Text(task),
            model: model.into(),
            weights: None,
            lora: None,
            training: TrainingConfig::new(16, 256, 2000, 2e-3),
        }
    }

    /// Checks what can be checked without the text or the device.
    ///
    /// # Errors
    /// [`Error::Value`] for a value that makes no sense; a layout of another version.
    pub fn check(&self) -> Result<(), Error> {
        if self.format != FORMAT {
            let known = format!("this version knows {FORMAT}");
            return Err(Error::value("format", self.format, known));
        }
        self.training.check()?;
        let [_, width, layers] = self.model.sizes();
        size("layers", layers, MOST_LAYERS)?;
        size("width", width, MOST)?;
        match &self.model {
            AnyLanguageModelConfig::Recurrent(model) => {
                size("expansion", model.expansion, MOST)?;
                size("time_scale", model.time_scale, MOST)?;
                size("mlp", model.mlp, MOST)?;
                range("dropout", model.dropout, 0.0, 0.99)?;
                if matches!(model.cell, RecurrentKind::Heads(_)) || model.attention_every.is_some()
                {
                    model.check()?;
                }
            }
            model => model.check()?,
        }
        if let Some(positions) = self.model.positions()
            && self.length() > positions as u128
        {
            let reason = format!("the model has {positions} positions");
            return Err(Error::value("context", self.training.context, reason));
        }
        if let Some(lora) = &self.lora {
            lora.check()?;
            let all = |reason| Err(Error::value("lora", lora.rank, reason));
            if self.weights.is_none() {
                return all("published weights are missing");
            }
            if self.training.hybrid.is_some() {
                return all("hybrid training moves all weights");
            }
            if self.training.average.is_some() {
                return all("the average is one of all weights");
            }
        }
        match &self.task {
            TaskConfig::SelectiveCopy(task) => size("data_tokens", task.data_tokens, MOST)?,
            TaskConfig::Text(task) => range("split", task.split, 0.0, 1.0)?,
        }
        Ok(())
    }

    /// Checks that the model has the task's symbols.
    pub(crate) fn check_vocab(&self) -> Result<(), Error> {
        let [found, ..] = self.model.sizes();
        let vocab = match &self.task {
            TaskConfig::SelectiveCopy(_) => SelectiveCopy::VOCAB,
            TaskConfig::Text(task) => task.vocabulary.len(),
        };
        // Published tables have more rows than there are tokens.
        let padded = self.weights.is_some() && found > vocab;
        if found != vocab && !padded || vocab == 0 {
            let reason = format!("the task has {vocab} symbols");
            return Err(Error::value("vocab", found, reason));
        }
        Ok(())
    }
}

/// More than any machine has memory for, and small enough for sums of a few.
const MOST: usize = 1 << 40;
/// Blocks of a model; each takes time to make, however narrow it is.
const MOST_LAYERS: usize = 10_000;

fn size(field: &'static str, value: usize, most: usize) -> Result<(), Error> {
    match value {
        0 => Err(Error::value(field, value, "must be at least 1")),
        _ if value > most => Err(Error::value(
            field,
            value,
            format!("must be at most {most}"),
        )),
        _ => Ok(()),
    }
}

fn range(field: &'static str, value: f64, low: f64, high: f64) -> Result<(), Error> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    let reason = match high {
        f64::MAX => format!("must be a finite number of at least {low}"),
        _ => format!("must be from {low} to {high}"),
    };
    Err(Error::value(field, value, reason))
}

impl TrainingConfig {
    /// Sizes, a peak learning rate, and the defaults for the rest.
    pub fn new(batch: usize, context: usize, steps: u64, lr: f64) -> Self {
        let mut config = Self {
            batch,
            accumulate: 1,
            context,
            steps,
            lr,
            warmup: 0,
            schedule: Decay::Cosine,
            optimizer: OptimizerConfig::default(),
            seed: 0,
            dtype: Precision::F32,
            saved_states: SavedStates::All,
            eval_every: 1,
            patience: None,
            average: None,
            keep: 1,
            report_every: 1,
            hybrid: None,
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

    /// Checks every value by itself.
    ///
    /// # Errors
    /// [`Error::Value`] for one that makes no sense.
    pub fn check(&self) -> Result<(), Error> {
        size("batch", self.batch, MOST)?;
        size("context", self.context, MOST)?;
        size("accumulate", self.accumulate, self.batch)?;
        if !self.batch.is_multiple_of(self.accumulate) {
            let reason = format!("must divide the batch of {}", self.batch);
            return Err(Error::value("accumulate", self.accumulate, reason));
        }
        let counts = [
            ("steps", self.steps),
            ("eval_every", self.eval_every),
            ("report_every", self.report_every),
            ("patience", self.patience.unwrap_or(1)),
            ("keep", self.keep as u64),
        ];
        for (name, value) in counts {
            if value == 0 {
                return Err(Error::value(name, value, "must be at least 1"));
            }
        }
        let optimizer = &self.optimizer;
        let just_below_1 = f64::from(1.0f32.next_down());
        range("lr", self.lr, 0.0, f64::MAX)?;
        range("weight_decay", optimizer.weight_decay, 0.0, f64::MAX)?;
        let beta_1 = match optimizer.kind {
            OptimizerKind::AdamW => "beta_1",
            OptimizerKind::Sgd => "momentum",
        };
        range(beta_1, optimizer.beta_1.into(), 0.0, just_below_1)?;
        range("beta_2", optimizer.beta_2.into(), 0.0, just_below_1)?;
        range("epsilon", optimizer.epsilon.into(), 0.0, f32::MAX.into())?;
        range("average", self.average.unwrap_or(0.0), 0.0, just_below_1)?;
        range("clip", optimizer.clip, f64::MIN_POSITIVE, f64::MAX)?;
        if let Some(hybrid) = &self.hybrid {
            hybrid.check()?;
        }
        Ok(())
    }

    /// The learning rate over the run.
    pub fn learning_rate(&self) -> Schedule {
        Schedule {
            peak: self.lr,
            warmup: self.warmup,
            steps: self.steps,
            decay: self.schedule,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_earlier_versions_are_read() {
        let mut config = RunConfig::selective_copy();
        config.training.saved_states = SavedStates::None;
        let text = serde_json::to_string(&config).unwrap();
        for name in ["checkpoints", "recompute"] {
            let earlier = text.replace("\"saved_states\"", &format!("\"{name}\""));
            assert_ne!(earlier, text);
            let read: RunConfig = serde_json::from_str(&earlier).unwrap();
            assert_eq!(read.training, config.training);
        }
    }
}
