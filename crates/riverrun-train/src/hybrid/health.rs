//! One number for the state of a run.

/// Parts of the score, each 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Vitals {
    /// How steadily the loss falls.
    pub loss: f64,
    /// How near the gradient norm is to its baseline.
    pub gradients: f64,
    /// How right predictions were.
    pub predictions: f64,
    /// Confidence in the next prediction.
    pub confidence: f64,
    /// The share of observations without a signal.
    pub stability: f64,
}

/// Scores from which on predictions may have a part of their full length; below the last there are none.
const LENGTHS: [(f64, f64); 4] = [(0.85, 1.0), (0.70, 0.75), (0.50, 0.50), (0.30, 0.25)];

impl Vitals {
    /// The weighted sum, 0 to 1, with weights 0.25, 0.15, 0.15, 0.25, 0.20. A part that is not a number counts as 0.
    pub fn score(&self) -> f64 {
        let part = |value: f64| {
            if value.is_nan() {
                0.0
            } else {
                value.clamp(0.0, 1.0)
            }
        };
        0.25 * part(self.loss)
            + 0.15 * part(self.gradients)
            + 0.15 * part(self.predictions)
            + 0.25 * part(self.confidence)
            + 0.20 * part(self.stability)
    }

    /// The part of its full length that a prediction may have.
    pub fn length(&self) -> f64 {
        let score = self.score();
        let reached = |(least, _): &&(f64, f64)| score >= *least;
        LENGTHS.iter().find(reached).map_or(0.0, |(_, part)| *part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(value: f64) -> Vitals {
        Vitals {
            loss: value,
            gradients: value,
            predictions: value,
            confidence: value,
            stability: value,
        }
    }

    #[test]
    fn scores() {
        let scores = [1.0, 0.5, f64::NAN, -3.0, 7.0].map(|value| all(value).score());
        let expected = [1.0, 0.5, 0.0, 0.0, 1.0];
        for (score, expected) in scores.iter().zip(expected) {
            assert!((score - expected).abs() < 1e-12);
        }
    }

    #[test]
    fn lower_scores_make_shorter_predictions() {
        let lengths = [1.0, 0.86, 0.8, 0.6, 0.4, 0.29, f64::NAN].map(|value| all(value).length());
        assert_eq!(lengths, [1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]);
    }
}
