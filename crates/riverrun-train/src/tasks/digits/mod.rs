//! Images of digits, 28 × 28.

mod drawn;
mod idx;
mod run;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rand::Rng;
use rand::seq::SliceRandom;
use serde::{Deserialize, Serialize};

use super::{Purpose, Task, batch_rng};
use crate::Error;

pub use run::{DigitsRun, DigitsTask};

/// Pixels along a side.
pub const SIDE: usize = 28;
/// Pixels of an image.
pub const PIXELS: usize = SIDE * SIDE;
/// Images in the validation set of drawn digits.
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
/// Batch `n` is a function of the seed and `n`. Images of files come in a new order in every pass over them, each once; the whole
/// test set validates. Drawn digits never end; 1000 others validate.
pub struct Digits {
    source: Source,
    batch: usize,
    seed: u64,
}

enum Source {
    Drawn,
    Read {
        train: idx::Set,
        test: idx::Set,
        /// A pass and the order of its images: the last that was asked for.
        order: Mutex<(u64, Vec<u32>)>,
    },
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
            order: Mutex::new((u64::MAX, Vec::new())),
        })
    }

    fn validation(&self) -> usize {
        match self {
            Source::Drawn => VALIDATION,
            Source::Read { test, .. } => test.labels.len(),
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
        let mut images = Images::with_capacity(self.batch);
        match &self.source {
            Source::Drawn => {
                let mut rng = batch_rng(self.seed, Purpose::Training, step);
                for _ in 0..self.batch {
                    let digit = rng.random_range(0..10);
                    images.push(digit as i32, drawn::draw(digit, &mut rng).into_iter());
                }
            }
            Source::Read { train, order, .. } => {
                let mut order = order.lock().unwrap_or_else(PoisonError::into_inner);
                let (first, count) = (step * self.batch as u64, train.labels.len() as u64);
                for at in first..first + self.batch as u64 {
                    let (pass, place) = (at / count, (at % count) as usize);
                    if order.0 != pass {
                        let mut rng = batch_rng(self.seed, Purpose::Training, pass);
                        let mut images: Vec<u32> = (0..count as u32).collect();
                        images.shuffle(&mut rng);
                        *order = (pass, images);
                    }
                    images.push_from(train, order.1[place] as usize);
                }
            }
        }
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

    fn items_per_epoch(&self) -> Option<usize> {
        match &self.source {
            Source::Drawn => None,
            Source::Read { train, .. } => Some(train.labels.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_has_every_image_once() {
        let set = |count: u8| idx::Set {
            pixels: (0..count).flat_map(|image| [image; PIXELS]).collect(),
            labels: vec![1; usize::from(count)],
        };
        let order = || Mutex::new((u64::MAX, Vec::new()));
        let task = Digits {
            source: Source::Read {
                train: set(10),
                test: set(3),
                order: order(),
            },
            batch: 4,
            seed: 1,
        };
        let image = |step: u64| -> Vec<u8> {
            let pixels = task.train_batch(step).pixels;
            let first = pixels.chunks(PIXELS).map(|image| image[0]);
            first.map(|pixel| (pixel * 255.0).round() as u8).collect()
        };
        let seen: Vec<u8> = (0..5).flat_map(image).collect();
        let passes = [&seen[..10], &seen[10..]];
        for pass in passes {
            let mut sorted = pass.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..10).collect::<Vec<u8>>());
        }
        assert_ne!(passes[0], passes[1]);
        // A step is the same wherever the run was taken up.
        assert_eq!(image(1), seen[4..8]);
        assert_eq!(task.items_per_epoch(), Some(10));
        assert_eq!(
            (task.validation_batches(), task.validation_batch(0).counted),
            (1, 3)
        );
    }

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
