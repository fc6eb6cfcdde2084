//! How well predictors would have predicted the updates that came.

use serde::{Deserialize, Serialize};

use super::observation::{Products, WINDOWS};

/// Part of an average that stays at each window.
const KEEP: f64 = 0.8;
/// Windows before the averages count.
const ENOUGH: u32 = 3;

/// The chosen predictor and the continued last update, measured on every window of real steps, whether they are used or not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Judge {
    chosen: Score,
    plain: Score,
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
    fn add(&mut self, products: &[Products], forecast: &[[f64; WINDOWS]]) {
        let (mut pp, mut pf, mut ff) = (0.0, 0.0, 0.0);
        for (products, weights) in products.iter().zip(forecast) {
            let (predicted, both, found) = products.compare(weights);
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
        self.chosen.add(products, chosen);
        self.plain.add(products, plain);
    }

    /// Whether the continued last update has had the smaller error.
    pub fn plain_is_better(&self) -> bool {
        self.plain.error < self.chosen.error
    }

    /// How much the predictor that is used has agreed with what came, 0 to 1; 0 before there is enough to say.
    pub fn agreement(&self, plain: bool) -> f64 {
        let score = if plain { self.plain } else { self.chosen };
        match score.seen {
            0..ENOUGH => 0.0,
            _ => score.cosine.clamp(0.0, 1.0),
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
