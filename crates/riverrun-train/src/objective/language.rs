//! The next symbol of a sequence.

use std::ops::Range;

use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};
use riverrun::Sequence;
use riverrun::ops::SavedStates;
use riverrun_models::weights::Published;
use riverrun_models::{AnyLanguageModel, AnyLanguageModelConfig, LoraConfig};

use super::inputs::rows_of_part;
use super::{Inputs, Objective, Score, count_correct, cross_entropy};
use crate::tasks::Batch;
use crate::{Error, RunConfig};

/// A language model that learns the targets of [`Batch`]es by their cross-entropy.
#[derive(Debug, Clone)]
pub struct Language {
    model: AnyLanguageModelConfig,
    /// The weights that a new run starts from.
    weights: Option<Published>,
    lora: Option<LoraConfig>,
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
            weights: None,
            lora: config.lora.clone(),
            dropping: match &config.model {
                AnyLanguageModelConfig::Recurrent(model) => model.dropout > 0.0,
                _ => false,
            },
            saved_states: config.training.saved_states,
            accuracy,
            bytes: config.step_bytes(),
        }
    }

    /// With the weights that a new run starts from, of a model of the run's configuration.
    pub fn with_weights(mut self, weights: Published) -> Self {
        self.weights = Some(weights);
        self
    }

    /// Logits `[counted, L, V]`, on a GPU with padding columns after them, and targets `[counted, L]` of the scored part. In a
    /// piece of the sequences without a scored part, all logits and no targets.
    fn logits(
        &self,
        model: &AnyLanguageModel,
        inputs: &Inputs,
        dropping: bool,
    ) -> (Tensor<3>, Option<Tensor<2, Int>>) {
        let tokens = inputs.int::<2>(0);
        let [rows, length] = tokens.dims();
        let mut sequence = Sequence::new();
        sequence.neighbours = inputs.neighbours().cloned();
        let (mut logits, _) = match dropping && self.dropping {
            true => model.forward_dropping(tokens, sequence, inputs.key()),
            false => model.forward_padded(tokens, sequence),
        };
        if inputs.len() == 1 {
            return (logits, None);
        }
        let targets = inputs.int::<2>(1);
        let [counted, scored] = targets.dims();
        if scored < length {
            logits = logits.narrow(1, length - scored, scored);
        }
        if counted < rows {
            logits = logits.narrow(0, 0, counted);
        }
        (logits, Some(targets))
    }
}

/// 0, from logits `[B, T, V]`: the gradients of later pieces come back to a model that has no loss of its own.
fn no_loss(logits: Tensor<3>) -> Tensor<1> {
    let one = logits.narrow(0, 0, 1).narrow(1, 0, 1).narrow(2, 0, 1);
    one.cast(FloatDType::F32).sum().mul_scalar(0.0)
}

/// Refuses a model whose sequences of `length` steps cannot be divided among `ranks` ranks along time.
///
/// # Errors
/// [`Error::AlongTime`] for a model with attention; fewer steps than ranks.
pub(crate) fn check_along_time(
    model: &AnyLanguageModelConfig,
    length: u128,
    ranks: usize,
) -> Result<(), Error> {
    if !matches!(model, AnyLanguageModelConfig::Recurrent(_)) {
        return Err(Error::AlongTime(format!("the model {}", model.kind())));
    }
    if (ranks as u128) > length {
        let reason =
            format!("there are {length} steps in a sequence, and at least one for each rank");
        return Err(Error::value("context_parallel", ranks, reason));
    }
    Ok(())
}

impl Objective for Language {
    type Model = AnyLanguageModel;
    type Batch = Batch;

    fn init(&self, device: &Device) -> AnyLanguageModel {
        self.model.init(device).with_saved_states(self.saved_states)
    }

    fn start(&self, device: &Device) -> Result<AnyLanguageModel, Error> {
        let model = match &self.weights {
            None => self.model.init(device),
            Some(weights) => weights.load(device, FloatDType::F32)?,
        };
        let model = model.with_saved_states(self.saved_states);
        Ok(match &self.lora {
            None => model,
            Some(lora) => lora.adapt(model),
        })
    }

    fn tensors(&self, batch: &Batch) -> Vec<TensorData> {
        let tokens = TensorData::new(batch.inputs.clone(), [batch.rows, batch.length]);
        if batch.scored == 0 {
            return vec![tokens];
        }
        let targets = batch.targets[..batch.counted * batch.scored].to_vec();
        vec![
            tokens,
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
            let mut tensors = vec![cut(&batch.inputs, part, [rows, batch.length])];
            if batch.scored > 0 {
                tensors.push(cut(&batch.targets, part, [counted, batch.scored]));
            }
            tensors
        };
        Ok(parts.map(part).collect())
    }

    fn piece(&self, batch: &Batch, index: usize, of: usize) -> Result<Batch, Error> {
        check_along_time(&self.model, batch.length as u128, of)?;
        Ok(batch.piece(index, of))
    }

    fn loss(&self, model: &AnyLanguageModel, inputs: &Inputs) -> Tensor<1> {
        match self.logits(model, inputs, true) {
            (logits, Some(targets)) => cross_entropy(logits, targets),
            (logits, None) => no_loss(logits),
        }
    }

    fn score(&self, model: &AnyLanguageModel, inputs: &Inputs) -> Score {
        let (logits, targets) = self.logits(model, inputs, false);
        let Some(targets) = targets else {
            let none = || Tensor::zeros([1], &logits.device());
            return Score {
                correct: self.accuracy.then(none),
                loss: no_loss(logits),
            };
        };
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

    fn freezes(&self) -> bool {
        self.lora.is_some()
    }

    fn bytes(&self) -> Option<u128> {
        Some(self.bytes)
    }
}
