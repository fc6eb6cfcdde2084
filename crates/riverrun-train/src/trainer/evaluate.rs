//! The validation of a model.

use std::time::Instant;

use burn::tensor::{Int, Tensor};

use crate::tasks::Task;
use crate::{Error, Learner, Objective, Score};

/// The scores of a model on a validation set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    /// Mean loss of a scored item; in nats for cross-entropy.
    pub loss: f64,
    /// Part of the scored items that were right, for tasks that have right answers.
    pub accuracy: Option<f64>,
    /// Scored items.
    pub scored: usize,
    /// Items read a second.
    pub items_per_s: f64,
}

/// Scores a learner's model on the whole validation set of `task`.
///
/// `progress` is called with the number of batches done and their total.
///
/// # Errors
/// A device that fails.
pub fn evaluate<O: Objective>(
    learner: &Learner<O>,
    task: &dyn Task<Batch = O::Batch>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Evaluation, Error> {
    let start = Instant::now();
    let (objective, model) = (learner.objective(), learner.working_model());
    let batches = task.validation_batches();
    let (mut loss, mut correct, mut scored, mut read) = (0.0, None, 0usize, 0usize);
    // Read in groups: each read waits for the device, and a sum of few batches loses no digits in f32.
    let mut pending: Option<(Tensor<1>, Option<Tensor<1, Int>>)> = None;
    for index in 0..batches {
        let batch = task.validation_batch(index);
        let items = objective.scored(&batch);
        let inputs = learner.validation_inputs(&batch, index);
        let score = objective.score(&model, &inputs);
        let Score {
            loss: batch_loss,
            correct: batch_correct,
        } = score;
        let batch_loss = batch_loss
            .cast(burn::tensor::FloatDType::F32)
            .mul_scalar(items as f64);
        pending = Some(match pending {
            Some((sum, count)) => (
                sum + batch_loss,
                count.zip(batch_correct).map(|(count, more)| count + more),
            ),
            None => (batch_loss, batch_correct),
        });
        scored += items;
        read += objective.items(&batch);
        progress(index + 1, batches);
        if (index + 1) % 8 == 0 || index + 1 == batches {
            let (sum, count) = pending.take().expect("a batch was just added");
            loss += riverrun::device::read(sum)?.iter::<f64>().sum::<f64>();
            if let Some(count) = count {
                let count: u64 = riverrun::device::read(count)?.iter::<u64>().sum();
                correct = Some(correct.unwrap_or(0) + count);
            }
        }
    }
    Ok(Evaluation {
        loss: loss / scored as f64,
        accuracy: correct.map(|correct| correct as f64 / scored as f64),
        scored,
        items_per_s: read as f64 / start.elapsed().as_secs_f64(),
    })
}
