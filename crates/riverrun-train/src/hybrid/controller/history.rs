//! Losses, gradient norms and phases of the last steps.

use crate::hybrid::phase::Phase;
use crate::hybrid::plateau::slope;

/// Losses and gradient norms that are kept.
const HISTORY: usize = 256;
/// Losses that slopes and deviations are taken from.
const RECENT: usize = 64;

/// The last of some losses.
pub fn recent(losses: &[f64]) -> &[f64] {
    &losses[losses.len().saturating_sub(RECENT)..]
}

/// The deviation of losses from a line through them.
pub fn noise(losses: &[f64]) -> f64 {
    let count = losses.len() as f64;
    if count < 3.0 {
        return 0.0;
    }
    let slope = slope(losses.iter().copied());
    let (mean, middle) = (losses.iter().sum::<f64>() / count, (count - 1.0) / 2.0);
    let off = |(i, loss): (usize, &f64)| (loss - mean - slope * (i as f64 - middle)).powi(2);
    (losses.iter().enumerate().map(off).sum::<f64>() / (count - 2.0)).sqrt()
}

/// Adds a value, in the place of the oldest where there are many; one that is not finite is left out.
pub fn push(history: &mut Vec<f64>, value: f64) {
    if value.is_finite() {
        if history.len() == HISTORY {
            history.remove(0);
        }
        history.push(value);
    }
}

/// Adds steps to the last phase, or begins the next with them.
pub fn add_steps(phases: &mut Vec<(Phase, u64)>, phase: Phase, steps: u64) {
    match phases.last_mut() {
        Some((last, count)) if *last == phase => *count += steps,
        _ => phases.push((phase, steps)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_what_a_line_leaves() {
        let line: Vec<f64> = (0..20).map(|i| 3.0 - 0.1 * f64::from(i)).collect();
        assert!(noise(&line) < 1e-12);
        let off = |(i, loss): (usize, &f64)| loss + if i % 2 == 0 { 0.1 } else { -0.1 };
        let noisy: Vec<f64> = line.iter().enumerate().map(off).collect();
        assert!((noise(&noisy) - 0.1).abs() < 0.01, "{}", noise(&noisy));
        assert_eq!(noise(&line[..2]), 0.0);
    }

    #[test]
    fn what_is_not_finite_is_not_kept() {
        let mut kept = Vec::new();
        for value in [1.0, f64::NAN, f64::INFINITY, 2.0] {
            push(&mut kept, value);
        }
        assert_eq!(kept, [1.0, 2.0]);
        (0..2 * HISTORY).for_each(|i| push(&mut kept, i as f64));
        assert_eq!((kept.len(), kept[0]), (HISTORY, HISTORY as f64));
    }

    #[test]
    fn steps_of_a_phase_are_added_up() {
        let mut phases = Vec::new();
        for (phase, steps) in [(Phase::Full, 5), (Phase::Full, 5), (Phase::Predict, 9)] {
            add_steps(&mut phases, phase, steps);
        }
        assert_eq!(phases, [(Phase::Full, 10), (Phase::Predict, 9)]);
    }
}
