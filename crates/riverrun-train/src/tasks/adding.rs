//! The adding problem: the sum of two marked numbers of a sequence.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor, TensorData};
use rand::Rng;
use riverrun::Sequence;
use riverrun::nn::Recurrent;
use riverrun_models::{AnyRecurrent, RecurrentKind};
use serde::{Deserialize, Serialize};

use super::{Purpose, Task, batch_rng};
use crate::{Error, Inputs, Objective, Score, Setup, TrainingConfig, mean_squared_error};

/// The layout of `config.json` that this version writes and reads.
const FORMAT: u32 = 1;
/// Sequences in the validation set at least.
const VALIDATION: usize = 1000;
/// A sum is right within this: Hochreiter & Schmidhuber, experiment 4.
const RIGHT: f64 = 0.04;

/// A run of the task: `config.json` of its folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AddingConfig {
    /// Version of the layout.
    pub format: u32,
    /// The name of the task.
    pub task: AddingTask,
    /// Kind of the recurrent layers.
    pub model: RecurrentKind,
    /// Hidden units of a layer.
    pub width: usize,
    /// Recurrent layers.
    pub layers: usize,
    /// The training.
    pub training: TrainingConfig,
}

/// The name of the task, as `config.json` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum AddingTask {
    /// [`Adding`].
    Adding,
}

impl AddingConfig {
    /// Two layers of minGRU with 64 hidden units, on sequences of 100 steps.
    pub fn new() -> Self {
        let mut training = TrainingConfig::new(64, 100, 1000, 1e-2);
        training.optimizer.weight_decay = 0.0;
        Self {
            format: FORMAT,
            task: AddingTask::Adding,
            model: RecurrentKind::MinGru,
            width: 64,
            layers: 2,
            training,
        }
    }

    /// The run's parts.
    ///
    /// # Errors
    /// [`Error::Value`] for a value that makes no sense.
    pub fn setup(&self) -> Result<Setup<Adding>, Error> {
        if self.format != FORMAT {
            let known = format!("this version knows {FORMAT}");
            return Err(Error::value("format", self.format, known));
        }
        for (field, value, most) in [
            ("width", self.width, 1 << 20),
            ("layers", self.layers, 1 << 10),
        ] {
            if !(1..=most).contains(&value) {
                let reason = format!("must be from 1 to {most}");
                return Err(Error::value(field, value, reason));
            }
        }
        if self.training.context < 2 {
            let reason = "two numbers are added: must be at least 2";
            return Err(Error::value("context", self.training.context, reason));
        }
        if matches!(self.model, RecurrentKind::Heads(_)) {
            return Err(Error::Unsupported(format!(
                "the task adding has no use for {}: its layers have no heads",
                self.model
            )));
        }
        let adding = Adding {
            config: self.clone(),
        };
        Setup::new(
            adding.clone(),
            Box::new(adding),
            self.training.clone(),
            self,
        )
    }
}

impl Default for AddingConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// The adding problem: each step has a number from 0 to 1 and a mark; two steps are marked, one in each half of the sequence, and
/// the answer is the sum of their numbers. The loss is the mean squared error; the mean as a guess costs 1/6.
///
/// Source: Hochreiter & Schmidhuber, *Long Short-Term Memory* (1997), section 5.4, with marks and numbers as in Le, Jaitly &
/// Hinton, *A Simple Way to Initialize Recurrent Networks of Rectified Linear Units* (2015), section 4.1.
#[derive(Debug, Clone)]
pub struct Adding {
    config: AddingConfig,
}

/// Sequences with their sums, on the host.
#[derive(Debug, Clone, PartialEq)]
pub struct AddingBatch {
    /// Number and mark of each step, `[B, T, 2]`.
    pub steps: Vec<f32>,
    /// The sums, `[B]`.
    pub sums: Vec<f32>,
}

/// Recurrent layers, and a linear layer on the last state.
#[derive(Module, Debug)]
pub struct AddingNet {
    /// The first reads `[B, T, 2]`, each other one the states of the layer below.
    pub layers: Vec<AnyRecurrent>,
    /// The last state to the sum.
    pub out: Linear,
}

impl AddingNet {
    /// The sums `[B, 1]` of sequences `[B, T, 2]`.
    pub fn forward(&self, steps: Tensor<3>) -> Tensor<2> {
        let states = self
            .layers
            .iter()
            .fold(steps, |x, layer| layer.run(x, Sequence::new()).0);
        let last = states.dims()[1] - 1;
        self.out.forward(states.narrow(1, last, 1).squeeze_dim(1))
    }
}

impl Adding {
    fn batch(&self, purpose: Purpose, index: u64) -> AddingBatch {
        let mut rng = batch_rng(self.config.training.seed, purpose, index);
        let (rows, length) = (self.config.training.batch, self.config.training.context);
        let mut batch = AddingBatch {
            steps: Vec::with_capacity(rows * length * 2),
            sums: Vec::with_capacity(rows),
        };
        for _ in 0..rows {
            let half = length / 2;
            let marked = [rng.random_range(0..half), rng.random_range(half..length)];
            let mut sum = 0.0;
            for step in 0..length {
                let number: f32 = rng.random();
                let mark = marked.contains(&step);
                sum += if mark { number } else { 0.0 };
                batch.steps.extend([number, f32::from(u8::from(mark))]);
            }
            batch.sums.push(sum);
        }
        batch
    }
}

impl Objective for Adding {
    type Model = AddingNet;
    type Batch = AddingBatch;

    fn init(&self, device: &Device) -> AddingNet {
        let AddingConfig {
            model,
            width,
            layers,
            ..
        } = self.config;
        let layer = |index| {
            let inputs = if index == 0 { 2 } else { width };
            model.init(inputs, width, true, self.config.training.context, device)
        };
        AddingNet {
            layers: (0..layers).map(layer).collect(),
            out: LinearConfig::new(width, 1).init(device),
        }
    }

    fn tensors(&self, batch: &AddingBatch) -> Vec<TensorData> {
        let rows = batch.sums.len();
        let length = batch.steps.len() / 2 / rows.max(1);
        vec![
            TensorData::new(batch.steps.clone(), [rows, length, 2]),
            TensorData::new(batch.sums.clone(), [rows, 1]),
        ]
    }

    fn loss(&self, model: &AddingNet, inputs: &Inputs) -> Tensor<1> {
        mean_squared_error(model.forward(inputs.float(0)), inputs.float::<2>(1))
    }

    fn score(&self, model: &AddingNet, inputs: &Inputs) -> Score {
        let (found, sums) = (model.forward(inputs.float(0)), inputs.float::<2>(1));
        let right = (found.clone() - sums.clone()).abs().lower_elem(RIGHT);
        Score {
            loss: mean_squared_error(found, sums),
            correct: Some(right.int().sum()),
        }
    }

    fn scored(&self, batch: &AddingBatch) -> usize {
        batch.sums.len()
    }

    fn items(&self, batch: &AddingBatch) -> usize {
        batch.steps.len() / 2
    }

    fn draws(&self) -> bool {
        false
    }

    fn bytes(&self) -> Option<u128> {
        let training = &self.config.training;
        let steps = training.batch as u128 * training.context as u128;
        Some(4 * steps * (2 + self.config.width as u128 * self.config.layers as u128))
    }
}

impl Task for Adding {
    type Batch = AddingBatch;

    fn name(&self) -> &'static str {
        "adding"
    }

    fn train_batch(&self, step: u64) -> AddingBatch {
        self.batch(Purpose::Training, step)
    }

    fn validation_batches(&self) -> usize {
        VALIDATION.div_ceil(self.config.training.batch)
    }

    fn validation_batch(&self, index: usize) -> AddingBatch {
        self.batch(Purpose::Validation, index as u64)
    }

    fn items_per_step(&self) -> usize {
        self.config.training.batch * self.config.training.context
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_of_two_marked_numbers() {
        let mut config = AddingConfig::new();
        (config.training.batch, config.training.context) = (5, 7);
        let task = Adding { config };
        let batch = task.train_batch(3);
        assert_eq!((batch.steps.len(), batch.sums.len()), (5 * 7 * 2, 5));
        for (steps, sum) in batch.steps.chunks(14).zip(&batch.sums) {
            let marked: Vec<usize> = (0..7).filter(|t| steps[2 * t + 1] == 1.0).collect();
            assert!(matches!(marked[..], [0..3, 3..7]), "{marked:?}");
            assert_eq!(*sum, steps[2 * marked[0]] + steps[2 * marked[1]]);
        }
        assert_eq!(task.train_batch(3), batch);
        assert_ne!(task.validation_batch(3), batch);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let refused = |change: fn(&mut AddingConfig), message: &str| {
            let mut config = AddingConfig::new();
            change(&mut config);
            let error = config.setup().err().unwrap().to_string();
            assert!(error.contains(message), "{error}");
        };
        refused(|config| config.width = 0, "width 0");
        refused(|config| config.layers = 0, "layers 0");
        refused(|config| config.training.context = 1, "two numbers");
        refused(
            |config| config.model = "mamba2".parse().unwrap(),
            "no heads",
        );
    }
}
