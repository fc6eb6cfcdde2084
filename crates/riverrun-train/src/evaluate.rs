//! The validation of a model.

use std::time::Instant;

use burn::tensor::{Device, Int, Tensor};
use riverrun::models::LanguageModel;

use crate::Error;
use crate::loss::{count_correct, cross_entropy};
use crate::tasks::Task;
use crate::tokens::Tokens;

/// What a model scores on a validation set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    /// Mean cross-entropy in nats a scored token.
    pub loss: f64,
    /// Part of the scored tokens that were right, for tasks that have right answers.
    pub accuracy: Option<f64>,
    /// Scored tokens.
    pub tokens: usize,
    /// Tokens read a second, for tokens that count.
    pub tokens_per_s: f64,
}

/// Scores `model` (without autodiff) on the whole validation set of `task`.
///
/// `progress` hears the number of batches done and their total.
///
/// # Errors
/// A device that fails.
pub fn evaluate(
    model: &LanguageModel,
    task: &dyn Task,
    device: &Device,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Evaluation, Error> {
    let start = Instant::now();
    let batches = task.validation_batches();
    let (mut loss, mut correct, mut scored, mut read) = (0.0, 0u64, 0usize, 0usize);
    // Read in groups: each read waits for the device, and a sum of few batches loses no digits in f32.
    let mut pending: Option<(Tensor<1>, Option<Tensor<1, Int>>)> = None;
    for index in 0..batches {
        let batch = task.validation_batch(index);
        let tokens = batch.counted * batch.scored;
        let (logits, targets) = Tokens::new(&batch, device).forward(model);
        let batch_loss = cross_entropy(logits.clone(), targets.clone()).mul_scalar(tokens as f64);
        let batch_correct = task.has_accuracy().then(|| count_correct(logits, targets));
        pending = Some(match pending {
            Some((sum, count)) => (
                sum + batch_loss,
                count.zip(batch_correct).map(|(count, more)| count + more),
            ),
            None => (batch_loss, batch_correct),
        });
        scored += tokens;
        read += batch.counted * batch.length;
        progress(index + 1, batches);
        if (index + 1) % 8 == 0 || index + 1 == batches {
            let (sum, count) = pending.take().expect("a batch was just added");
            loss += sum.try_into_scalar::<f64>().map_err(Error::device)?;
            if let Some(count) = count {
                correct += count.try_into_scalar::<u64>().map_err(Error::device)?;
            }
        }
    }
    Ok(Evaluation {
        loss: loss / scored as f64,
        accuracy: task.has_accuracy().then(|| correct as f64 / scored as f64),
        tokens: scored,
        tokens_per_s: read as f64 / start.elapsed().as_secs_f64(),
    })
}
