//! Tasks: the data of training.
//!
//! A task returns batches by number, not from a stream: batch `n` is a function of the run's seed and of `n` alone. So a
//! resumed run sees exactly the batches of an uninterrupted one.

mod adding;
mod bpe;
mod corpus;
mod digits;
mod longest;
mod pendulum;
mod selective_copy;
mod text;
mod vocabulary;
mod xor;

pub use adding::{Adding, AddingBatch, AddingConfig, AddingNet, AddingTask};
pub use bpe::Bpe;
pub use corpus::Corpus;
pub use digits::{Digits, DigitsConfig, DigitsRun, DigitsTask, Images, PIXELS, SIDE};
pub use pendulum::{OBSERVED, Pendulum, PendulumBatch, PendulumConfig};
pub use selective_copy::{SelectiveCopy, SelectiveCopyConfig};
pub use text::{Text, TextConfig};
pub use vocabulary::{SymbolKind, Vocabulary};
pub use xor::{Xor, XorConfig, XorNet, XorTask};

use std::ops::Range;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::{Error, RunConfig, TaskConfig};

/// Sequences with their targets, on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Number of sequences, B.
    pub rows: usize,
    /// Length of each sequence, T.
    pub length: usize,
    /// Tokens `[B, T]`, row by row.
    pub inputs: Vec<i32>,
    /// How many of the last positions of a sequence are scored, L ≤ T.
    pub scored: usize,
    /// The right answers at the scored positions, `[B, L]`.
    pub targets: Vec<i32>,
    /// How many of the first rows count; the rest only fill the batch to its usual shape, so that a
    /// device never meets a second shape.
    pub counted: usize,
}

impl Batch {
    /// Piece `index` of `of` along time: steps `index · T / of` and on, up to those of the next piece.
    pub(crate) fn piece(&self, index: usize, of: usize) -> Self {
        let cut = |index: usize| index * self.length / of;
        let steps = cut(index)..cut(index + 1);
        let unscored = self.length - self.scored;
        let scored = steps.start.max(unscored)..steps.end.max(unscored);
        let scored = scored.start - unscored..scored.end - unscored;
        let rows = |all: &[i32], width: usize, columns: &Range<usize>| {
            let rows = all.chunks_exact(width.max(1));
            rows.flat_map(|row| row[columns.clone()].to_vec()).collect()
        };
        Self {
            rows: self.rows,
            length: steps.len(),
            inputs: rows(&self.inputs, self.length, &steps),
            scored: scored.len(),
            targets: rows(&self.targets, self.scored, &scored),
            counted: self.counted,
        }
    }
}

/// A source of numbered batches.
pub trait Task: Send + Sync {
    /// A batch on the host.
    type Batch;

    /// Name for folders and messages, such as `selective-copy`.
    fn name(&self) -> &'static str;

    /// The training batch of a step; steps count from 0.
    fn train_batch(&self, step: u64) -> Self::Batch;

    /// The number of batches in the validation set.
    fn validation_batches(&self) -> usize;

    /// Validation batch `index < validation_batches()`; the same at every evaluation.
    fn validation_batch(&self, index: usize) -> Self::Batch;

    /// Items that the model reads in a training step, for the run's speed.
    fn items_per_step(&self) -> usize;

    /// Items of the training data, in the unit of [`items_per_step`](Self::items_per_step); `None` for data that are made as they
    /// are needed.
    fn items_per_epoch(&self) -> Option<usize> {
        None
    }
}

/// A task for a language model.
pub trait TokenTask: Task<Batch = Batch> {
    /// Number of distinct tokens; tokens are `0..vocab()`.
    fn vocab(&self) -> usize;

    /// Whether the accuracy is meaningful for this task, in addition to the loss.
    fn has_accuracy(&self) -> bool;
}

/// Opens the task that a configuration names, reading its text if it has one.
///
/// # Errors
/// A text that cannot be read, is empty, too short for the context, or is no longer the text the
/// configuration was made for; sizes that make no sense.
pub fn open(config: &RunConfig) -> Result<Box<dyn TokenTask>, Error> {
    let (training, seed) = (&config.training, config.training.seed);
    Ok(match &config.task {
        TaskConfig::SelectiveCopy(task) => Box::new(SelectiveCopy::new(
            task.clone(),
            training.context,
            training.batch,
            seed,
        )?),
        TaskConfig::Text(task) => {
            let corpus = Corpus::read(&task.sources)?;
            Box::new(Text::new(
                task,
                &corpus,
                training.context,
                training.batch,
                seed,
            )?)
        }
    })
}

/// The random generator of batch `index` in one of a run's streams; no two share their numbers.
pub(crate) fn batch_rng(seed: u64, purpose: Purpose, index: u64) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    // The high bit of the stream number keeps validation apart from training at every step.
    rng.set_stream(match purpose {
        Purpose::Training => index,
        Purpose::Validation => index | 1 << 63,
    });
    rng
}

/// The purpose of random numbers.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    Training,
    Validation,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_consecutive_steps_with_their_targets() {
        let batch = Batch {
            rows: 2,
            length: 7,
            inputs: (0..14).collect(),
            scored: 3,
            targets: vec![104, 105, 106, 111, 112, 113],
            counted: 2,
        };
        let pieces: Vec<Batch> = (0..3).map(|index| batch.piece(index, 3)).collect();
        assert_eq!(pieces[0].inputs, [0, 1, 7, 8]);
        assert_eq!(pieces[1].inputs, [2, 3, 9, 10]);
        assert_eq!(pieces[2].inputs, [4, 5, 6, 11, 12, 13]);
        let scored: Vec<usize> = pieces.iter().map(|piece| piece.scored).collect();
        assert_eq!(scored, [0, 0, 3]);
        assert_eq!(pieces[2].targets, batch.targets);
        // A scored part that is cut itself.
        let halves = [batch.piece(0, 2), batch.piece(1, 2)];
        assert_eq!([halves[0].length, halves[1].length], [3, 4]);
        assert_eq!([halves[0].scored, halves[1].scored], [0, 3]);
        let last = [batch.piece(5, 7), batch.piece(6, 7)];
        assert_eq!(last[0].targets, [105, 112]);
        assert_eq!(last[1].targets, [106, 113]);
        assert_eq!(batch.piece(0, 1), batch);
    }
}
