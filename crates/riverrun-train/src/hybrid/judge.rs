//! How well predictors would have predicted the updates that came.

use serde::{Deserialize, Serialize};

use super::observation::{Products, WINDOWS};

/// Part of an average that stays at each window.
const KEEP: f64 = 0.8;
/// Windows before the averages count.
const ENOUGH: u32 = 3;
/// Least agreement of updates with each other that counts: below it, the estimate is too poor to correct by.
const LEAST: f64 = 0.25;

/// The chosen predictor and the continued last update, measured on every window of real steps, whether they are used or not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Judge {
    chosen: Score,
    plain: Score,
    /// Updates beside those before them.
    #[serde(default)]
    repeated: Score,
}

/// Averages over the last windows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct Score {
    /// `|predicted - found|² / |found|²`.
    error: f64,
    /// The cosine of the angle between them.
    cosine: f64,
    seen: u32,
}

impl Score {
    /// Takes in a window by the products of each group: of the prediction with itself, of both, of what was found with itself.
    fn add(&mut self, groups: impl Iterator<Item = (f64, f64, f64)>) {
        let (mut pp, mut pf, mut ff) = (0.0, 0.0, 0.0);
        for (predicted, both, found) in groups {
            (pp, pf, ff) = (pp + predicted, pf + both, ff + found);
        }
        let error = (pp - 2.0 * pf + ff) / ff;
        let cosine = pf / (pp * ff).sqrt();
        if !error.is_finite() || pp.is_nan() {
            return;
        }
        let cosine = if cosine.is_finite() { cosine } else { 0.0 };
        // Plain means at first, so that the first windows do not weigh more than the others.
        let keep = KEEP.min(f64::from(self.seen) / f64::from(self.seen + 1));
        self.error = keep * self.error + (1.0 - keep) * error.min(100.0);
        self.cosine = keep * self.cosine + (1.0 - keep) * cosine;
        self.seen = self.seen.saturating_add(1);
    }
}

impl Judge {
    /// Takes in a window: the products of the updates, the last of which was to be predicted, and what was predicted from the
    /// others.
    pub fn add(
        &mut self,
        products: &[Products],
        chosen: &[[f64; WINDOWS]],
        plain: &[[f64; WINDOWS]],
    ) {
        let beside = |weights: &[[f64; WINDOWS]]| -> Vec<(f64, f64, f64)> {
            let pairs = products.iter().zip(weights);
            pairs.map(|(products, w)| products.compare(w)).collect()
        };
        self.chosen.add(beside(chosen).into_iter());
        self.plain.add(beside(plain).into_iter());
        self.repeated.add(products.iter().map(Products::last_two));
    }

    /// Whether the continued last update has had the smaller error.
    pub fn plain_is_better(&self) -> bool {
        self.plain.error < self.chosen.error
    }

    /// How much the predictor that is used has agreed with what came, 0 to 1; 0 before there is enough to say.
    ///
    /// An update is a mean update and the noise of its batches. A prediction of the mean itself agrees with an update by the
    /// root of the agreement of two updates with each other, no more: the measured cosine is divided by this root (Spearman's
    /// correction for attenuation), which gives the cosine with the mean. Updates agree with each other by their momentum too,
    /// so that the correction is rather too small.
    ///
    /// Source: Spearman, *The Proof and Measurement of Association between Two Things* (1904).
    pub fn agreement(&self, plain: bool) -> f64 {
        let score = if plain { self.plain } else { self.chosen };
        let repeated = self.repeated.cosine.clamp(LEAST, 1.0);
        match score.seen {
            0..ENOUGH => 0.0,
            _ if self.repeated.seen < ENOUGH => score.cosine.clamp(0.0, 1.0),
            _ => (score.cosine / repeated.sqrt()).clamp(0.0, 1.0),
        }
    }

    /// Forgets what is known of the chosen predictor.
    pub fn forget(&mut self) {
        self.chosen = Score::default();
    }
}

#[cfg(test)]
mod tests {
    use super::super::observation::tests::products;
    use super::*;

    #[test]
    fn a_right_and_a_wrong_predictor() {
        let steady = [products([[1.0, 0.5]; WINDOWS + 1])];
        let mut judge = Judge::default();
        let (right, opposite) = ([[0.0, 0.0, 0.0, 1.0]], [[0.0, 0.0, 0.0, -3.0]]);
        for _ in 0..ENOUGH {
            assert_eq!(judge.agreement(false), 0.0);
            judge.add(&steady, &opposite, &right);
        }
        assert!(judge.plain_is_better());
        assert!((judge.agreement(true) - 1.0).abs() < 1e-9);
        assert_eq!(judge.agreement(false), 0.0);
        judge.forget();
        assert_eq!(judge.agreement(false), 0.0);
    }

    /// Updates with a common part and as much noise, each in a direction of its own: a prediction of the common part counts as
    /// right, and one of a direction that has nothing to do with it as wrong.
    #[test]
    fn noise_of_the_updates_is_no_error_of_the_prediction() {
        let noisy: [Products; 1] = {
            let mut products = Products::default();
            for n in 0..=WINDOWS {
                let mut row = [1.0; WINDOWS + 1];
                row[WINDOWS] = 2.0;
                row[..WINDOWS - n.min(WINDOWS)].fill(0.0);
                products.push(&row);
            }
            [products]
        };
        let mean = [[0.25; WINDOWS]];
        let turned = [[0.5, -0.5, 0.5, -0.5]];
        let mut judge = Judge::default();
        (0..20).for_each(|_| judge.add(&noisy, &turned, &mean));
        // The mean of four noisy updates: cosine 1 / √(1 + 1/4) with the common part.
        assert!((judge.agreement(true) - 1.25f64.sqrt().recip()).abs() < 1e-9);
        assert_eq!(judge.agreement(false), 0.0);
    }

    #[test]
    fn what_is_not_a_number_is_not_counted() {
        let mut judge = Judge::default();
        let steady = [products([[1.0, 0.0]; WINDOWS + 1])];
        judge.add(&steady, &[[f64::NAN; WINDOWS]], &[[0.0; WINDOWS]]);
        judge.add(
            &[products([[0.0, 0.0]; WINDOWS + 1])],
            &[[1.0; WINDOWS]],
            &[[1.0; WINDOWS]],
        );
        assert_eq!((judge.chosen.seen, judge.plain.seen), (0, 1));
    }
}
