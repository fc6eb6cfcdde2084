//! Selective copying: remember the marked tokens of a sequence, in order, and nothing else.

use rand::Rng;
use rand::seq::index;
use serde::{Deserialize, Serialize};

use super::{Batch, Purpose, Task, TokenTask, batch_rng};
use crate::Error;

/// Number of symbols.
const VOCAB: usize = 16;
/// The symbol between data tokens.
const BLANK: i32 = 0;
/// The symbol of an output slot.
const SLOT: i32 = VOCAB as i32 - 1;
/// Sequences in the validation set: with 16 tokens each, accuracy is known to about 0.5 %.
const VALIDATION_SEQUENCES: usize = 512;

/// Options of [`SelectiveCopy`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelectiveCopyConfig {
    /// Tokens to remember; the paper has 16.
    pub data_tokens: usize,
}

/// Selective copying: remember the marked tokens of a sequence, in order, and nothing else.
///
/// As in *Were RNNs All We Needed?* (Feng et al. 2024, section 4.1) and *Mamba* (Gu and Dao 2023,
/// section 4.1.1), with the latter's generator: a sequence is `context` blanks with `data_tokens`
/// tokens scattered among them, so `context + data_tokens` positions, followed by `data_tokens`
/// slots at which the model must give the tokens back in order. Of 16 symbols, 0 is the blank, 15
/// marks a slot, and data are drawn evenly from 1 to 14. Only the slots are scored.
#[derive(Debug, Clone)]
pub struct SelectiveCopy {
    data_tokens: usize,
    context: usize,
    batch: usize,
    seed: u64,
}

impl SelectiveCopy {
    /// Number of distinct symbols.
    pub const VOCAB: usize = VOCAB;

    /// Makes the task for `context ≥ 1` blanks and batches of `batch ≥ 1` sequences.
    ///
    /// # Errors
    /// A size of 0.
    pub fn new(
        config: SelectiveCopyConfig,
        context: usize,
        batch: usize,
        seed: u64,
    ) -> Result<Self, Error> {
        let data_tokens = config.data_tokens;
        for (name, value) in [
            ("data_tokens", data_tokens),
            ("context", context),
            ("batch", batch),
        ] {
            if value == 0 {
                return Err(Error::value(name, value, "must be at least 1"));
            }
        }
        Ok(Self {
            data_tokens,
            context,
            batch,
            seed,
        })
    }

    /// Length of a whole sequence, slots included: `context + 2 data_tokens`.
    pub fn length(&self) -> usize {
        self.context + 2 * self.data_tokens
    }

    fn sequences(&self, rows: usize, counted: usize, purpose: Purpose, index: u64) -> Batch {
        let mut rng = batch_rng(self.seed, purpose, index);
        let (length, body) = (self.length(), self.context + self.data_tokens);
        let mut inputs = vec![BLANK; rows * length];
        let mut targets = Vec::with_capacity(rows * self.data_tokens);
        for row in inputs.chunks_exact_mut(length) {
            let mut places = index::sample(&mut rng, body, self.data_tokens).into_vec();
            places.sort_unstable();
            for place in places {
                let token = rng.random_range(BLANK + 1..SLOT);
                row[place] = token;
                targets.push(token);
            }
            row[body..].fill(SLOT);
        }
        Batch {
            rows,
            length,
            inputs,
            scored: self.data_tokens,
            targets,
            counted,
        }
    }
}

impl Task for SelectiveCopy {
    type Batch = Batch;

    fn name(&self) -> &'static str {
        "selective-copy"
    }

    fn train_batch(&self, step: u64) -> Batch {
        self.sequences(self.batch, self.batch, Purpose::Training, step)
    }

    fn validation_batches(&self) -> usize {
        VALIDATION_SEQUENCES.div_ceil(self.batch)
    }

    fn validation_batch(&self, index: usize) -> Batch {
        let counted = self.batch.min(VALIDATION_SEQUENCES - index * self.batch);
        self.sequences(self.batch, counted, Purpose::Validation, index as u64)
    }

    fn items_per_step(&self) -> usize {
        self.batch * self.length()
    }
}

impl TokenTask for SelectiveCopy {
    fn vocab(&self) -> usize {
        VOCAB
    }

    fn has_accuracy(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task() -> SelectiveCopy {
        SelectiveCopy::new(SelectiveCopyConfig { data_tokens: 5 }, 20, 3, 7).unwrap()
    }

    #[test]
    fn targets_are_the_data_tokens_in_order() {
        let task = task();
        let batch = task.train_batch(11);
        assert_eq!(
            (batch.rows, batch.length, batch.scored, batch.counted),
            (3, 30, 5, 3)
        );
        for (row, targets) in batch.inputs.chunks(30).zip(batch.targets.chunks(5)) {
            let (body, slots) = row.split_at(25);
            let data: Vec<i32> = body.iter().copied().filter(|&t| t != BLANK).collect();
            assert_eq!(data, targets);
            assert!(data.iter().all(|t| (1..SLOT).contains(t)));
            assert!(slots.iter().all(|&t| t == SLOT));
        }
    }

    #[test]
    fn a_batch_depends_on_its_number_alone() {
        let task = task();
        assert_eq!(task.train_batch(4), task.train_batch(4));
        assert_ne!(task.train_batch(4), task.train_batch(5));
        assert_ne!(task.train_batch(0).inputs, task.validation_batch(0).inputs);
    }

    #[test]
    fn the_last_validation_batch_is_full_but_counts_its_part() {
        let task = task();
        let counted: usize = (0..task.validation_batches())
            .map(|i| task.validation_batch(i).counted)
            .sum();
        assert_eq!(counted, VALIDATION_SEQUENCES);
        assert_eq!(task.validation_batch(task.validation_batches() - 1).rows, 3);
    }

    #[test]
    fn sizes_of_zero_are_refused() {
        let none = SelectiveCopyConfig { data_tokens: 0 };
        assert!(SelectiveCopy::new(none, 20, 3, 7).is_err());
    }
}
