//! Residuals whose features are kept in a few directions.

use serde::{Deserialize, Serialize};

use super::svd::leading;
use super::{Residual, Similar, dot};

/// Directions of a block.
const RANK: usize = 4;

/// Some residuals, with their features as coordinates in the directions that hold most of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Block {
    /// Directions of length 1, orthogonal to each other.
    basis: Vec<Vec<f32>>,
    entries: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Entry {
    step: u64,
    coordinates: Vec<f32>,
    confidence: f64,
    errors: Vec<f64>,
}

impl Block {
    /// These residuals, compressed.
    pub fn of(residuals: &[Residual]) -> Self {
        let rows: Vec<&[f32]> = residuals
            .iter()
            .map(|residual| residual.features.as_slice())
            .collect();
        let basis: Vec<Vec<f32>> = leading(&rows, RANK)
            .into_iter()
            .map(|v| v.into_iter().map(|x| x as f32).collect())
            .collect();
        let entry = |residual: &Residual| Entry {
            step: residual.step,
            coordinates: coordinates(&basis, &residual.features),
            confidence: residual.confidence,
            errors: residual.errors.clone(),
        };
        Self {
            entries: residuals.iter().map(entry).collect(),
            basis,
        }
    }

    /// All residuals of the block, with the cosines of their compressed features and these.
    pub fn similar(&self, features: &[f32]) -> impl Iterator<Item = Similar<'_>> {
        let along = coordinates(&self.basis, features);
        let length = dot(features, features).sqrt();
        self.entries.iter().map(move |entry| {
            let whole = length * dot(&entry.coordinates, &entry.coordinates).sqrt();
            let cosine = dot(&along, &entry.coordinates) / whole;
            Similar {
                cosine: if whole > 0.0 { cosine } else { 0.0 },
                step: entry.step,
                confidence: entry.confidence,
                errors: &entry.errors,
            }
        })
    }
}

/// The largest features give coordinates beyond f32, which are cut there.
fn coordinates(basis: &[Vec<f32>], features: &[f32]) -> Vec<f32> {
    let most = f64::from(f32::MAX);
    let along = |v: &Vec<f32>| dot(v, features).clamp(-most, most) as f32;
    basis.iter().map(along).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::residual;
    use super::super::{BLOCK, cosine};
    use super::*;

    /// Features in three directions are kept whole: the cosines are those of the features.
    #[test]
    fn few_directions_lose_nothing() {
        let residuals: Vec<Residual> = (0..BLOCK as u64)
            .map(|step| {
                let mut residual = residual(step, step as f32 * 0.1, 0.0);
                residual.features[40] = step as f32 * 0.05;
                residual
            })
            .collect();
        let block = Block::of(&residuals);
        let asked = &residuals[17].features;
        for (found, residual) in block.similar(asked).zip(&residuals) {
            let expected = cosine(asked, &residual.features);
            assert!((found.cosine - expected).abs() < 1e-6);
            assert_eq!(found.step, residual.step);
        }
    }

    #[test]
    fn features_without_length_are_similar_to_nothing() {
        let mut empty = residual(3, 0.0, 0.5);
        empty.features.fill(0.0);
        let block = Block::of(&vec![empty; 3]);
        let found: Vec<_> = block.similar(&[1.0; 64]).collect();
        assert!(found.iter().all(|found| found.cosine == 0.0));
    }
}
