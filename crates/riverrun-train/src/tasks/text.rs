//! Text: predict each symbol from those before it.

use rand::Rng;
use serde::{Deserialize, Serialize};

use super::{Batch, Corpus, Purpose, Task, TokenTask, Vocabulary, batch_rng};
use crate::Error;

/// Validation windows are at most about this many symbols, evenly spread, so that an evaluation on a
/// large text does not outlast the training between two of them.
const MOST_VALIDATION_SYMBOLS: usize = 1 << 17;

/// A run's text: where it is, and how to recognise it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TextConfig {
    /// Files in order; `-` is standard input.
    pub sources: Vec<String>,
    /// Part of the text that trains, above 0 and below 1.
    pub split: f64,
    /// Length of the text in bytes.
    pub bytes: usize,
    /// [`Corpus::fingerprint`] of the text.
    pub fingerprint: String,
    /// Its symbols.
    pub vocabulary: Vocabulary,
}

impl TextConfig {
    /// Describes a text that has been read from `sources`, with the symbols that suit it: [`Vocabulary::of`].
    pub fn describe(sources: Vec<String>, corpus: &Corpus, split: f64) -> Self {
        Self {
            sources,
            split,
            bytes: corpus.bytes().len(),
            fingerprint: corpus.fingerprint(),
            vocabulary: Vocabulary::of(corpus.bytes()),
        }
    }
}

/// Text: predict each symbol from those before it.
///
/// The text is split by position: the first part trains, the rest validates. A training batch is
/// `batch` windows of `context` symbols at random places. The validation part is cut into
/// consecutive windows of `context` symbols that cover all of it but a last piece shorter than one;
/// each window starts without state, so the loss is that of a model that sees at most `context`
/// symbols, as the published figures for this task are.
#[derive(Debug, Clone)]
pub struct Text {
    train: Vec<u32>,
    validation: Vec<u32>,
    /// Starts of the validation windows.
    windows: Vec<usize>,
    vocab: usize,
    context: usize,
    batch: usize,
    seed: u64,
}

impl Text {
    /// Splits and numbers a text.
    ///
    /// # Errors
    /// A text that is not the one described; a part shorter than `context + 1` symbols; a split that
    /// is not inside (0, 1); a size of 0.
    pub fn new(
        config: &TextConfig,
        corpus: &Corpus,
        context: usize,
        batch: usize,
        seed: u64,
    ) -> Result<Self, Error> {
        for (name, value) in [("context", context), ("batch", batch)] {
            if value == 0 {
                return Err(Error::value(name, value, "must be at least 1"));
            }
        }
        if !(config.split > 0.0 && config.split < 1.0) {
            return Err(Error::value(
                "split",
                config.split,
                "must be above 0 and below 1",
            ));
        }
        if config.fingerprint != corpus.fingerprint() {
            return Err(Error::Unsupported(format!(
                "{} is no longer the text that the run began with ({} bytes then, {} now)",
                corpus.label(),
                config.bytes,
                corpus.bytes().len()
            )));
        }
        let mut train = config.vocabulary.encode(corpus.bytes())?;
        let validation = train.split_off((train.len() as f64 * config.split) as usize);
        for (part, have) in [("training", train.len()), ("validation", validation.len())] {
            if have < context + 1 {
                return Err(Error::ShortText {
                    part,
                    have,
                    context,
                });
            }
        }
        let whole = (validation.len() - 1) / context;
        let kept = whole.min((MOST_VALIDATION_SYMBOLS / context).max(1));
        let windows = (0..kept).map(|i| i * whole / kept * context).collect();
        let vocab = config.vocabulary.len();
        Ok(Self {
            train,
            validation,
            windows,
            vocab,
            context,
            batch,
            seed,
        })
    }

    /// Number of symbols in the training part.
    pub fn train_symbols(&self) -> usize {
        self.train.len()
    }

    /// Number of symbols in the validation part.
    pub fn validation_symbols(&self) -> usize {
        self.validation.len()
    }

    fn batch_from(
        &self,
        text: &[u32],
        starts: impl Iterator<Item = usize>,
        counted: usize,
    ) -> Batch {
        let size = self.batch * self.context;
        let (mut inputs, mut targets) = (Vec::with_capacity(size), Vec::with_capacity(size));
        for start in starts {
            let window = &text[start..=start + self.context];
            inputs.extend(window[..self.context].iter().map(|&token| token as i32));
            targets.extend(window[1..].iter().map(|&token| token as i32));
        }
        let (rows, length) = (self.batch, self.context);
        Batch {
            rows,
            length,
            inputs,
            scored: length,
            targets,
            counted,
        }
    }
}

impl Task for Text {
    type Batch = Batch;

    fn name(&self) -> &'static str {
        "text"
    }

    fn train_batch(&self, step: u64) -> Batch {
        let mut rng = batch_rng(self.seed, Purpose::Training, step);
        let places = self.train.len() - self.context;
        let starts: Vec<usize> = (0..self.batch)
            .map(|_| rng.random_range(0..places))
            .collect();
        self.batch_from(&self.train, starts.into_iter(), self.batch)
    }

    fn validation_batches(&self) -> usize {
        self.windows.len().div_ceil(self.batch)
    }

    fn validation_batch(&self, index: usize) -> Batch {
        let first = index * self.batch;
        let counted = self.batch.min(self.windows.len() - first);
        // Rows past the last window repeat it, and do not count.
        let starts =
            (first..first + self.batch).map(|i| self.windows[i.min(self.windows.len() - 1)]);
        self.batch_from(&self.validation, starts, counted)
    }

    fn items_per_step(&self) -> usize {
        self.batch * self.context
    }

    fn items_per_epoch(&self) -> Option<usize> {
        Some(self.train.len())
    }
}

impl TokenTask for Text {
    fn vocab(&self) -> usize {
        self.vocab
    }

    fn has_accuracy(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(length: usize, context: usize, batch: usize) -> Result<Text, Error> {
        let bytes: Vec<u8> = (0..length).map(|i| b'a' + (i % 26) as u8).collect();
        let corpus = Corpus::from_bytes(bytes, "alphabet").unwrap();
        let config = TextConfig::describe(vec!["alphabet".into()], &corpus, 0.9);
        Text::new(&config, &corpus, context, batch, 3)
    }

    #[test]
    fn targets_follow_inputs() {
        let task = text(1000, 10, 4).unwrap();
        for batch in [task.train_batch(0), task.validation_batch(0)] {
            assert_eq!((batch.rows, batch.length, batch.scored), (4, 10, 10));
            assert!(
                batch
                    .inputs
                    .iter()
                    .zip(&batch.targets)
                    .all(|(x, y)| (x + 1) % 26 == *y)
            );
        }
        assert_eq!(task.train_batch(2), task.train_batch(2));
        assert_ne!(task.train_batch(2), task.train_batch(3));
    }

    #[test]
    fn validation_covers_its_part_once() {
        let task = text(1000, 10, 4).unwrap();
        // 100 symbols: 9 whole windows with a target for each symbol.
        let counted: usize = (0..task.validation_batches())
            .map(|i| task.validation_batch(i).counted)
            .sum();
        assert_eq!(counted, 9);
        assert_eq!(task.windows, (0..9).map(|i| i * 10).collect::<Vec<_>>());
    }

    #[test]
    fn a_short_text_says_which_part() {
        let error = text(200, 32, 4).unwrap_err();
        assert!(matches!(
            error,
            Error::ShortText {
                part: "validation",
                have: 20,
                context: 32
            }
        ));
        assert!(text(330, 32, 4).is_ok());
    }

    #[test]
    fn another_text_is_refused() {
        let corpus = Corpus::from_bytes(b"abcabc".to_vec(), "one").unwrap();
        let config = TextConfig::describe(vec!["one".into()], &corpus, 0.5);
        let other = Corpus::from_bytes(b"abcabd".to_vec(), "one").unwrap();
        let error = Text::new(&config, &other, 1, 1, 0).unwrap_err();
        assert!(error.to_string().contains("no longer the text"));
    }
}
