//! The validation of a model.

use std::time::Instant;

use burn::tensor::{Int, Tensor};
use riverrun::Neighbours;

use crate::spread::time;
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
    evaluate_model(learner, &learner.working_model(), task, progress)
}

/// As [`evaluate`], with another model of the learner's objective, without autodiff.
///
/// # Errors
/// As there.
pub fn evaluate_model<O: Objective>(
    learner: &Learner<O>,
    model: &O::Model,
    task: &dyn Task<Batch = O::Batch>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Evaluation, Error> {
    let start = Instant::now();
    Ok(Sums::of(learner, model, task, (0, 1), None, progress)?.evaluation(start))
}

/// As [`evaluate`], with a model in the format of the arithmetic; each rank, or group of ranks, of a spread learner takes the batches of its number, and all get the same
/// scores.
pub(super) fn on_all_ranks<O: Objective>(
    learner: &mut Learner<O>,
    model: &O::Model,
    task: &dyn Task<Batch = O::Batch>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Evaluation, Error> {
    let start = Instant::now();
    let neighbours = learner.neighbours().cloned();
    let rows = learner.rows();
    let mut sums = Sums::of(learner, model, task, rows, neighbours.as_ref(), progress)?;
    time::check(neighbours.as_ref())?;
    let device = learner.device().clone().without_autodiff();
    if let Some(spread) = &mut learner.spread {
        spread.total(&mut sums.0, &device)?;
    }
    Ok(sums.evaluation(start))
}

/// Sums over batches: of losses, of right items, of items scored and read, and the number of batches with right items.
struct Sums([f64; 5]);

impl Sums {
    /// Those of every `ranks`th batch, from that of this rank on; where sequences are divided, of this rank's piece of them.
    fn of<O: Objective>(
        learner: &Learner<O>,
        model: &O::Model,
        task: &dyn Task<Batch = O::Batch>,
        (rank, ranks): (usize, usize),
        neighbours: Option<&Neighbours>,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, Error> {
        let objective = learner.objective();
        let batches = task.validation_batches();
        let [mut loss, mut correct, mut scored, mut read, mut judged] = [0.0; 5];
        // Read in groups: each read waits for the device, and a sum of few batches loses no digits in f32.
        let mut pending: Option<(Tensor<1>, Option<Tensor<1, Int>>)> = None;
        for (done, index) in (rank..batches).step_by(ranks).enumerate() {
            let mut batch = task.validation_batch(index);
            if let Some(neighbours) = neighbours {
                batch = objective.piece(&batch, neighbours.rank(), neighbours.size())?;
            }
            let items = objective.scored(&batch);
            let inputs = learner.validation_inputs(&batch, index);
            let inputs = inputs.with_neighbours(neighbours.cloned());
            let score = objective.score(model, &inputs);
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
            scored += items as f64;
            read += objective.items(&batch) as f64;
            progress(index + 1, batches);
            if (done + 1) % 8 == 0 || index + ranks >= batches {
                let (sum, count) = pending.take().expect("a batch was just added");
                loss += riverrun::device::read(sum)?.iter::<f64>().sum::<f64>();
                if let Some(count) = count {
                    let count: u64 = riverrun::device::read(count)?.iter::<u64>().sum();
                    correct += count as f64;
                    judged += 1.0;
                }
            }
        }
        Ok(Self([loss, correct, scored, read, judged]))
    }

    fn evaluation(self, start: Instant) -> Evaluation {
        let [loss, correct, scored, read, judged] = self.0;
        Evaluation {
            loss: loss / scored,
            accuracy: (judged > 0.0).then(|| correct / scored),
            scored: scored as usize,
            items_per_s: read / start.elapsed().as_secs_f64(),
        }
    }
}
