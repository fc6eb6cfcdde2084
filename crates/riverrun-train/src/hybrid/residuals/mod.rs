//! Errors of earlier predictions, found again by the situation in which they were made.

mod block;
mod svd;

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::FEATURES;
use block::Block;

/// Most residuals that are kept.
const MOST: usize = 1000;
/// Residuals that are compressed together; the store forgets as many at once.
const BLOCK: usize = 50;
/// Residuals that a correction is made from.
const SIMILAR: usize = 10;

/// The errors of one prediction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Residual {
    /// The step at which the prediction was made.
    pub step: u64,
    /// The features of the training state then.
    pub features: Vec<f32>,
    /// Confidence of the prediction, 0 to 1.
    pub confidence: f64,
    /// The measured value less the predicted one, relative.
    pub errors: Vec<f64>,
}

/// A residual that is similar to a situation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Similar<'a> {
    /// The cosine of the angle between their features.
    pub cosine: f64,
    pub step: u64,
    pub confidence: f64,
    pub errors: &'a [f64],
}

/// The last residuals, at most 1000.
///
/// The features of 50 residuals at a time are compressed to their coordinates in the four directions that hold most of them:
/// a store, and with it a checkpoint, is a tenth of the size, and a search takes a twelfth of the products.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Residuals {
    blocks: VecDeque<Block>,
    /// Those that are not compressed yet.
    fresh: Vec<Residual>,
}

impl Residuals {
    /// Adds one, in the place of the oldest where the store is full. One that is not finite is dropped.
    pub fn add(&mut self, residual: Residual) {
        let finite = residual.errors.iter().all(|error| error.is_finite())
            && residual.confidence.is_finite()
            && residual.features.iter().all(|value| value.is_finite());
        if !finite || residual.features.len() != FEATURES {
            return;
        }
        if self.fresh.len() == BLOCK {
            self.blocks.push_back(Block::of(&self.fresh));
            self.fresh.clear();
        }
        if self.blocks.len() * BLOCK == MOST {
            self.blocks.pop_front();
        }
        self.fresh.push(residual);
    }

    /// The ten most similar by the cosine of their features, the most similar first; later ones first among equals.
    pub fn similar(&self, features: &[f32]) -> Vec<Similar<'_>> {
        let fresh = self.fresh.iter().map(|residual| Similar {
            cosine: cosine(features, &residual.features),
            step: residual.step,
            confidence: residual.confidence,
            errors: &residual.errors,
        });
        let blocks = self.blocks.iter().flat_map(|block| block.similar(features));
        let mut found: Vec<Similar<'_>> = fresh.chain(blocks).collect();
        found.sort_by(|one, two| {
            let nearer = two.cosine.total_cmp(&one.cosine);
            nearer.then(two.step.cmp(&one.step))
        });
        found.truncate(SIMILAR);
        found
    }

    /// The residuals that are kept.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.blocks.len() * BLOCK + self.fresh.len()
    }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
    products.sum()
}

/// The cosine of the angle between two vectors; 0 where one has no length.
fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let length = (dot(a, a) * dot(b, b)).sqrt();
    if length > 0.0 {
        dot(a, b) / length
    } else {
        0.0
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A residual whose features point in a direction of the plane.
    pub(crate) fn residual(step: u64, angle: f32, error: f64) -> Residual {
        let mut features = vec![0.0; FEATURES];
        (features[0], features[1]) = (angle.cos(), angle.sin());
        Residual {
            step,
            features,
            confidence: 1.0,
            errors: vec![error],
        }
    }

    #[test]
    fn the_most_similar_come_first() {
        let mut store = Residuals::default();
        for step in 0..140 {
            store.add(residual(step, step as f32 * 0.02, 0.0));
        }
        assert_eq!((store.blocks.len(), store.fresh.len()), (2, 40));
        // Among those that are compressed, and among those that are not.
        for nearest in [30, 110] {
            let found = store.similar(&residual(0, nearest as f32 * 0.02, 0.0).features);
            assert_eq!(found.len(), SIMILAR);
            assert_eq!(found[0].step, nearest);
            assert!(
                found
                    .windows(2)
                    .all(|pair| pair[0].cosine >= pair[1].cosine)
            );
        }
    }

    #[test]
    fn the_store_is_bounded_and_clean() {
        let mut store = Residuals::default();
        for step in 0..1500 {
            store.add(residual(step, 0.1, 0.0));
            assert!(store.len() <= MOST);
        }
        assert!(store.len() > MOST - BLOCK);
        let found = store.similar(&residual(0, 0.1, 0.0).features);
        assert!(found[0].step >= 500);
        let mut store = Residuals::default();
        store.add(residual(0, 0.1, f64::NAN));
        store.add(residual(0, f32::NAN, 0.0));
        let mut short = residual(0, 0.1, 0.0);
        short.features.pop();
        store.add(short);
        assert_eq!(store.len(), 0);
        assert!(store.similar(&[0.0; FEATURES]).is_empty());
    }

    /// A saved store continues with the same bits.
    #[test]
    fn a_saved_store_is_the_same() {
        let mut store = Residuals::default();
        for step in 0..120 {
            let mut residual = residual(step, 0.0, 0.1 / (step + 1) as f64);
            let wave = |(i, x): (usize, &mut f32)| *x = (step as f32 * 0.3 + i as f32).sin();
            residual.features.iter_mut().enumerate().for_each(wave);
            store.add(residual);
        }
        let text = serde_json::to_string(&store).unwrap();
        let read: Residuals = serde_json::from_str(&text).unwrap();
        assert_eq!(read, store);
    }
}
