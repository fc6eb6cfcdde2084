//! A batch on the device.

use burn::tensor::{Device, Int, Tensor, TensorData};
use riverrun::models::LanguageModel;
use riverrun::nn::Sequence;
use riverrun::ops::refill_int;

use crate::Error;
use crate::tasks::Batch;

/// The tokens of a [`Batch`], without autodiff.
#[derive(Debug, Clone)]
pub(crate) struct Tokens {
    inputs: Tensor<2, Int>,
    targets: Tensor<2, Int>,
    /// Of the batch.
    scored: usize,
    counted: usize,
}

impl Tokens {
    pub(crate) fn new(batch: &Batch, device: &Device) -> Self {
        let device = device.clone().without_autodiff();
        let [inputs, targets] = data(batch);
        Self {
            inputs: Tensor::from_data(inputs, &device),
            targets: Tensor::from_data(targets, &device),
            scored: batch.scored,
            counted: batch.counted,
        }
    }

    /// Another batch of the same shape, in the same memory.
    pub(crate) fn refilled(self, batch: &Batch) -> Result<Self, Error> {
        let [inputs, targets] = data(batch);
        Ok(Self {
            inputs: refill_int(self.inputs, inputs)?,
            targets: refill_int(self.targets, targets)?,
            ..self
        })
    }

    /// Logits `[counted, L, V]` and targets `[counted, L]` of the scored part. A model with autodiff makes logits with
    /// autodiff.
    pub(crate) fn forward(self, model: &LanguageModel) -> (Tensor<3>, Tensor<2, Int>) {
        let [rows, length] = self.inputs.dims();
        let (mut inputs, mut targets) = (self.inputs, self.targets);
        if model.embedding.weight.val().is_autodiff() {
            (inputs, targets) = (Tensor::from_inner(inputs), Tensor::from_inner(targets));
        }
        let (mut logits, _) = model.forward(inputs, Sequence::new());
        if self.scored < length {
            logits = logits.narrow(1, length - self.scored, self.scored);
        }
        if self.counted < rows {
            logits = logits.narrow(0, 0, self.counted);
            targets = targets.narrow(0, 0, self.counted);
        }
        (logits, targets)
    }
}

fn data(batch: &Batch) -> [TensorData; 2] {
    [
        TensorData::new(batch.inputs.clone(), [batch.rows, batch.length]),
        TensorData::new(batch.targets.clone(), [batch.rows, batch.scored]),
    ]
}
