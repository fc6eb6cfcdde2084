//! The exclusive or of two bits, by the smallest net that can learn it.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::{relu, tanh};
use burn::tensor::{Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::Task;
use crate::{Error, Inputs, Objective, Score, Setup, TrainingConfig};

/// The layout of `config.json` that this version writes and reads.
const FORMAT: u32 = 1;

/// A run of the task: `config.json` of its folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct XorConfig {
    /// Version of the layout.
    pub format: u32,
    /// The name of the task.
    pub task: XorTask,
    /// Hidden units.
    pub hidden: usize,
    /// The training.
    pub training: TrainingConfig,
}

/// The name of the task, as `config.json` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum XorTask {
    /// [`Xor`].
    Xor,
}

impl XorConfig {
    /// Two inputs, four hidden units, one output, 500 steps.
    pub fn new() -> Self {
        let mut training = TrainingConfig::new(TABLE.len(), 1, 500, 0.05);
        training.optimizer.weight_decay = 0.0;
        Self {
            format: FORMAT,
            task: XorTask::Xor,
            hidden: 4,
            training,
        }
    }

    /// The run's parts.
    ///
    /// # Errors
    /// [`Error::Value`] for a value that makes no sense.
    pub fn setup(&self) -> Result<Setup<Xor>, Error> {
        if self.format != FORMAT {
            let known = format!("this version knows {FORMAT}");
            return Err(Error::value("format", self.format, known));
        }
        if !(1..=MOST_HIDDEN).contains(&self.hidden) {
            let reason = format!("must be from 1 to {MOST_HIDDEN}");
            return Err(Error::value("hidden", self.hidden, reason));
        }
        if self.training.batch != TABLE.len() {
            return Err(Error::value(
                "batch",
                self.training.batch,
                "there are four rows",
            ));
        }
        let xor = Xor {
            hidden: self.hidden,
        };
        Setup::new(xor.clone(), Box::new(xor), self.training.clone(), self)
    }
}

impl Default for XorConfig {
    fn default() -> Self {
        Self::new()
    }
}

const MOST_HIDDEN: usize = 1 << 20;

/// Two bits and their exclusive or.
const TABLE: [[f32; 3]; 4] = [[0., 0., 0.], [0., 1., 1.], [1., 0., 1.], [1., 1., 0.]];

/// The exclusive or of two bits: each step sees all four rows of its table. The loss is the binary cross-entropy in nats;
/// a guess costs ln 2.
///
/// No net without a hidden layer can learn it: Minsky & Papert, *Perceptrons* (1969).
#[derive(Debug, Clone)]
pub struct Xor {
    hidden: usize,
}

/// Two linear layers with tanh between them.
#[derive(Module, Debug)]
pub struct XorNet {
    /// Two bits to the hidden units.
    pub hidden: Linear,
    /// The hidden units to the logit of a 1.
    pub out: Linear,
}

impl Xor {
    fn logits(model: &XorNet, inputs: &Inputs) -> Tensor<2> {
        model
            .out
            .forward(tanh(model.hidden.forward(inputs.float::<2>(0))))
    }

    fn loss_of(logits: Tensor<2>, answers: Tensor<2>) -> Tensor<1> {
        // ln(1 + e^z) - y z, without overflow.
        let bend = logits.clone().abs().neg().exp().log1p();
        (relu(logits.clone()) + bend - logits * answers).mean()
    }
}

impl Objective for Xor {
    type Model = XorNet;
    type Batch = ();

    fn init(&self, device: &Device) -> XorNet {
        XorNet {
            hidden: LinearConfig::new(2, self.hidden).init(device),
            out: LinearConfig::new(self.hidden, 1).init(device),
        }
    }

    fn tensors(&self, (): &()) -> Vec<TensorData> {
        let bits: Vec<f32> = TABLE.iter().flat_map(|row| [row[0], row[1]]).collect();
        let answers: Vec<f32> = TABLE.iter().map(|row| row[2]).collect();
        vec![
            TensorData::new(bits, [TABLE.len(), 2]),
            TensorData::new(answers, [TABLE.len(), 1]),
        ]
    }

    fn loss(&self, model: &XorNet, inputs: &Inputs) -> Tensor<1> {
        Self::loss_of(Self::logits(model, inputs), inputs.float(1))
    }

    fn score(&self, model: &XorNet, inputs: &Inputs) -> Score {
        let (logits, answers) = (Self::logits(model, inputs), inputs.float::<2>(1));
        let said = logits.clone().greater_elem(0.0);
        let right = said.equal(answers.clone().greater_elem(0.5));
        Score {
            loss: Self::loss_of(logits, answers),
            correct: Some(right.int().sum()),
        }
    }

    fn scored(&self, (): &()) -> usize {
        TABLE.len()
    }

    fn draws(&self) -> bool {
        false
    }
}

impl Task for Xor {
    type Batch = ();

    fn name(&self) -> &'static str {
        "xor"
    }

    fn train_batch(&self, _: u64) {}

    fn validation_batches(&self) -> usize {
        1
    }

    fn validation_batch(&self, _: usize) {}

    fn items_per_step(&self) -> usize {
        TABLE.len()
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;

    #[test]
    fn the_net_has_17_parameters() {
        let hidden = XorConfig::new().hidden;
        let net = Xor { hidden }.init(&Device::flex());
        assert_eq!(net.num_params(), 17);
    }
}
