//! What the ensemble learns from: a window of a run, and what came of it.

use crate::hybrid::FEATURES;
use crate::hybrid::observation::Observation;

/// Classes of layer groups that have an output of their own: group `g` is in class `g mod 8`.
pub(super) const CLASSES: usize = 8;
/// The part of a lesson's weight that a window keeps for each window between it and the lesson's last.
const FADE: f32 = 0.7;
/// Least multiple of the loss that a logarithm is taken of.
const LEAST: f64 = 1e-6;

/// A situation, the losses of the windows that followed, and how the last of them moved the weights.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Lesson {
    /// See [`relative`].
    pub features: Vec<f32>,
    /// The logarithm of each window's loss in units of the loss before all of them.
    pub losses: Vec<f32>,
    /// By class of layer groups, the multiple of the mean of three updates that the last update was.
    pub multiples: [f32; CLASSES],
    /// Whether the loss fell in the last window.
    pub fell: bool,
}

impl Lesson {
    /// From an observation and those after it, one a window, at least one. None where a number is not finite, or a loss not above 0.
    pub fn new(before: &Observation, after: &[Observation]) -> Option<Self> {
        let last = after.last()?;
        let previous = after.len().checked_sub(2).map_or(before, |i| &after[i]);
        if !(is_usable(before) && after.iter().all(is_usable)) {
            return None;
        }
        let found = last.continued();
        let losses = after
            .iter()
            .map(|seen| (seen.loss / before.loss).max(LEAST).ln() as f32);
        Some(Self {
            features: relative(before)?,
            losses: losses.collect(),
            multiples: std::array::from_fn(|class| {
                let own = found.iter().skip(class).step_by(CLASSES);
                let (sum, count) = own.fold((0.0, 0.0), |(sum, count), x| (sum + x, count + 1.0));
                if count > 0.0 {
                    (sum / count) as f32
                } else {
                    1.0
                }
            }),
            fell: last.loss < previous.loss,
        })
    }

    /// The weight of each window's error: the nearer to the last, the more.
    pub fn weights(&self) -> Vec<f32> {
        let last = self.losses.len() - 1;
        (0..=last)
            .map(|window| FADE.powi((last - window) as i32))
            .collect()
    }
}

/// Whether an observation can be learned from: a loss above 0, and finite features.
pub(super) fn is_usable(seen: &Observation) -> bool {
    seen.loss > 0.0 && seen.loss.is_finite() && relative(seen).is_some()
}

/// The features with the loss as their unit, so that what is learned of one run holds for another: values of losses are
/// divided by the loss now, their variance by its square. None where a number is not finite.
pub(super) fn relative(seen: &Observation) -> Option<Vec<f32>> {
    let loss = seen.loss as f32;
    if seen.features.len() != FEATURES {
        return None;
    }
    let scaled = seen.features.iter().enumerate().map(|(i, x)| match i {
        0..=5 | 26..=31 => x / loss,
        34 => x / (loss * loss),
        _ => *x,
    });
    let scaled: Vec<f32> = scaled.collect();
    scaled.iter().all(|x| x.is_finite()).then_some(scaled)
}

#[cfg(test)]
mod tests {
    use super::super::super::super::observation::tests::observation;
    use super::*;

    #[test]
    fn losses_are_in_units_of_the_first() {
        let seen = |loss: f64| {
            let mut seen = observation([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.5, 0.0]]);
            seen.loss = loss;
            seen
        };
        let (before, one, two) = (seen(4.0), seen(2.0), seen(1.0));
        let lesson = Lesson::new(&before, &[one.clone(), two]).unwrap();
        let half = 0.5f32.ln();
        assert!((lesson.losses[0] - half).abs() < 1e-6);
        assert!((lesson.losses[1] - 2.0 * half).abs() < 1e-6);
        assert_eq!(lesson.weights(), [FADE, 1.0]);
        // One group, in the first class.
        assert_eq!(lesson.multiples[0], 0.5);
        assert_eq!(lesson.multiples[1], 1.0);
        assert!(lesson.fell);
        assert!(!Lesson::new(&one, &[before]).unwrap().fell);
        assert!((lesson.features[0] - 0.1 / 4.0).abs() < 1e-7);
        assert_eq!(lesson.features[7], 0.1);
    }

    #[test]
    fn what_is_not_a_number_is_no_lesson() {
        let good = observation([[1.0, 0.0]; 4]);
        let mut bad = good.clone();
        bad.loss = f64::NAN;
        assert_eq!(Lesson::new(&good, &[bad]), None);
        assert_eq!(Lesson::new(&good, &[]), None);
        let mut broken = good.clone();
        broken.features[3] = f32::INFINITY;
        assert_eq!(Lesson::new(&broken, &[good]), None);
    }
}
