//! Images of digits, 28 × 28.

mod drawn;
mod idx;
mod run;

use std::path::{Path, PathBuf};

use rand::Rng;
use serde::{Deserialize, Serialize};

use super::{Purpose, Task, batch_rng};
use crate::Error;

pub use run::{DigitsRun, DigitsTask};

/// Pixels along a side.
pub const SIDE: usize = 28;
/// Pixels of an image.
pub const PIXELS: usize = SIDE * SIDE;
/// Images in the validation set.
const VALIDATION: usize = 1000;

/// Options of [`Digits`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DigitsConfig {
    /// A folder with MNIST's four IDX files, or those of a data set in its format; digits are drawn where there is none.
    pub folder: Option<PathBuf>,
}

/// Images with their digits, on the host.
#[derive(Debug, Clone, PartialEq)]
pub struct Images {
    /// `[rows, 784]`, row by row, 0 to 1.
    pub pixels: Vec<f32>,
    /// The digit of each image.
    pub digits: Vec<i32>,
    /// The number of first rows that count; the rest only fill the batch to its usual shape.
    pub counted: usize,
}

/// Digits to tell apart: MNIST's, or drawn ones.
///
/// Batch `n` draws its images from the training set by a generator of its own, so it is a function of the seed and `n`.
/// Validation is on the first 1000 images of the test set.
pub struct Digits {
    source: Source,
    batch: usize,
    seed: u64,
}

enum Source {
    Drawn,
    Read { train: idx::Set, test: idx::Set },
}

impl Digits {
    /// Opens the data set for batches of `batch ≥ 1` images.
    ///
    /// # Errors
    /// Files that cannot be read or are not in MNIST's format.
    pub fn new(config: &DigitsConfig, batch: usize, seed: u64) -> Result<Self, Error> {
        if batch == 0 {
            return Err(Error::value("batch", batch, "must be at least 1"));
        }
        let source = match &config.folder {
            None => Source::Drawn,
            Some(folder) => Source::open(folder)?,
        };
        Ok(Self {
            source,
            batch,
            seed,
        })
    }

    /// Whether the digits are drawn rather than read.
    pub fn is_drawn(&self) -> bool {
        matches!(self.source, Source::Drawn)
    }
}

impl Source {
    fn open(folder: &Path) -> Result<Self, Error> {
        Ok(Source::Read {
            train: idx::read(folder, "train")?,
            test: idx::read(folder, "t10k")?,
        })
    }

    fn train(&self, rng: &mut rand_chacha::ChaCha8Rng, images: &mut Images) {
        match self {
            Source::Drawn => {
                let digit = rng.random_range(0..10);
                images.push(digit as i32, drawn::draw(digit, rng).into_iter());
            }
            Source::Read { train, .. } => {
                images.push_from(train, rng.random_range(0..train.labels.len()));
            }
        }
    }

    fn validation(&self) -> usize {
        match self {
            Source::Drawn => VALIDATION,
            Source::Read { test, .. } => test.labels.len().min(VALIDATION),
        }
    }
}

impl Images {
    fn with_capacity(rows: usize) -> Self {
        Self {
            pixels: Vec::with_capacity(rows * PIXELS),
            digits: Vec::with_capacity(rows),
            counted: rows,
        }
    }

    fn push(&mut self, digit: i32, pixels: impl Iterator<Item = f32>) {
        self.pixels.extend(pixels);
        self.digits.push(digit);
    }

    fn push_from(&mut self, set: &idx::Set, at: usize) {
        let pixels = &set.pixels[at * PIXELS..][..PIXELS];
        self.push(
            i32::from(set.labels[at]),
            pixels.iter().map(|byte| f32::from(*byte) / 255.0),
        );
    }
}

impl Task for Digits {
    type Batch = Images;

    fn name(&self) -> &'static str {
        "digits"
    }

    fn train_batch(&self, step: u64) -> Images {
        let mut rng = batch_rng(self.seed, Purpose::Training, step);
        let mut images = Images::with_capacity(self.batch);
        (0..self.batch).for_each(|_| self.source.train(&mut rng, &mut images));
        images
    }

    fn validation_batches(&self) -> usize {
        self.source.validation().div_ceil(self.batch)
    }

    fn validation_batch(&self, index: usize) -> Images {
        let whole = self.source.validation();
        let mut rng = batch_rng(self.seed, Purpose::Validation, index as u64);
        let mut images = Images::with_capacity(self.batch);
        for at in index * self.batch..(index + 1) * self.batch {
            match &self.source {
                Source::Drawn => {
                    images.push((at % 10) as i32, drawn::draw(at % 10, &mut rng).into_iter());
                }
                Source::Read { test, .. } => images.push_from(test, at.min(whole - 1)),
            }
        }
        images.counted = self.batch.min(whole - index * self.batch);
        images
    }

    fn items_per_step(&self) -> usize {
        self.batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_functions_of_their_numbers() {
        let task = || Digits::new(&DigitsConfig::default(), 64, 5).unwrap();
        assert_eq!(task().train_batch(3), task().train_batch(3));
        assert_ne!(task().train_batch(3), task().train_batch(4));
        assert_eq!(task().validation_batches(), 16);
        let last = task().validation_batch(15);
        assert_eq!((last.digits.len(), last.counted), (64, 1000 - 15 * 64));
        assert_eq!(last.pixels.len(), 64 * PIXELS);
        assert!(Digits::new(&DigitsConfig::default(), 0, 5).is_err());
        let missing = DigitsConfig {
            folder: Some("no such folder".into()),
        };
        assert!(Digits::new(&missing, 1, 5).is_err());
    }
}
