//! The next symbol of a sequence.

use std::ops::Range;

use burn::tensor::{Device, Int, Tensor, TensorData};
use riverrun::Sequence;
use riverrun::ops::SavedStates;
use riverrun_models::{AnyLanguageModel, AnyLanguageModelConfig};

use super::inputs::rows_of_part;
use super::{Inputs, Objective, Score, count_correct, cross_entropy};
use crate::tasks::Batch;
use crate::{Error, RunConfig};

/// A language model that learns the targets of [`Batch`]es by their cross-entropy.
#[derive(Debug, Clone)]
pub struct Language {
    model: AnyLanguageModelConfig,
    dropping: bool,
    saved_states: SavedStates,
    accuracy: bool,
    bytes: u128,
}

impl Language {
    /// The model of a run. With `accuracy`, validation counts right answers too.
    pub fn new(config: &RunConfig, accuracy: bool) -> Self {
        Self {
            model: config.model.clone(),
            dropping: match &config.model {
                AnyLanguageModelConfig::Recurrent(model) => model.dropout > 0.0,
                _ => false,
            },
            saved_states: config.training.saved_states,
            accuracy,
            bytes: config.step_bytes(),
        }
    }

    /// Logits `[counted, L, V]`, on a GPU with padding columns after them, and targets `[counted, L]` of the scored part.
    fn logits(
        &self,
        model: &AnyLanguageModel,
        inputs: &Inputs,
        dropping: bool,
    ) -> (Tensor<3>, Tensor<2, Int>) {
        let (tokens, targets) = (inputs.int::<2>(0), inputs.int::<2>(1));
        let ([rows, length], [counted, scored]) = (tokens.dims(), targets.dims());
        let (mut logits, _) = match dropping && self.dropping {
            true => model.forward_dropping(tokens, Sequence::new(), inputs.key()),
            false => model.forward_padded(tokens, Sequence::new()),
        };
        if scored < length {
            logits = logits.narrow(1, length - scored, scored);
        }
        if counted < rows {
            logits = logits.narrow(0, 0, counted);
        }
        (logits, targets)
    }
}

impl Objective for Language {
    type Model = AnyLanguageModel;
    type Batch = Batch;

    fn init(&self, device: &Device) -> AnyLanguageModel {
        self.model.init(device).with_saved_states(self.saved_states)
    }

    fn tensors(&self, batch: &Batch) -> Vec<TensorData> {
        let targets = batch.targets[..batch.counted * batch.scored].to_vec();
        vec![
            TensorData::new(batch.inputs.clone(), [batch.rows, batch.length]),
            TensorData::new(targets, [batch.counted, batch.scored]),
        ]
    }

    /// Without a copy of the other parts, which on several ranks are most of the batch.
    fn parts(
        &self,
        batch: &Batch,
        parts: Range<usize>,
        of: usize,
    ) -> Result<Vec<Vec<TensorData>>, Error> {
        let rows = rows_of_part(batch.rows, of)?;
        let counted = rows_of_part(batch.counted, of)?;
        let cut = |numbers: &[i32], part: usize, [rows, columns]: [usize; 2]| {
            let len = rows * columns;
            TensorData::new(numbers[part * len..][..len].to_vec(), [rows, columns])
        };
        let part = |part| {
            vec![
                cut(&batch.inputs, part, [rows, batch.length]),
                cut(&batch.targets, part, [counted, batch.scored]),
            ]
        };
        Ok(parts.map(part).collect())
    }

    fn loss(&self, model: &AnyLanguageModel, inputs: &Inputs) -> Tensor<1> {
        let (logits, targets) = self.logits(model, inputs, true);
        cross_entropy(logits, targets)
    }

    fn score(&self, model: &AnyLanguageModel, inputs: &Inputs) -> Score {
        let (logits, targets) = self.logits(model, inputs, false);
        Score {
            loss: cross_entropy(logits.clone(), targets.clone()),
            correct: self.accuracy.then(|| count_correct(logits, targets)),
        }
    }

    fn scored(&self, batch: &Batch) -> usize {
        batch.counted * batch.scored
    }

    fn items(&self, batch: &Batch) -> usize {
        batch.counted * batch.length
    }

    fn draws(&self) -> bool {
        // Dropout draws from the key.
        false
    }

    fn bytes(&self) -> Option<u128> {
        Some(self.bytes)
    }
}
