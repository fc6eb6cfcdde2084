//! What is known of a run besides its history, as numbers of an array.

use super::BOUND;

/// Values of a run besides its history.
pub const SCALARS: usize = 24;

/// The values of a run besides its history.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Scalars {
    pub seen: bool,
    pub step: f64,
    pub momentum: [f64; 2],
    pub variance: [f64; 2],
    pub learning_rate: f64,
    pub beta_powers: [f64; 2],
    pub phase: f64,
    pub steps_in_phase: f64,
    pub predict_phases: f64,
    /// [`BOUND`] if an input was not finite.
    pub prediction_error: f64,
    pub peak_rate: f64,
    /// The learning rate 16 steps ago.
    pub earlier_rate: Option<f64>,
}

/// Indices in the row of a run.
pub(super) const LOSS_COUNT: usize = 0;
pub(super) const GRADIENT_COUNT: usize = 1;
pub(super) const LOSS_AVERAGES: usize = 2;
pub(super) const GRADIENT_AVERAGES: usize = 5;
pub(super) const REST: usize = 8;

impl Scalars {
    pub(super) fn array(&self) -> [f64; SCALARS - REST] {
        [
            f64::from(u8::from(self.seen)),
            self.step,
            self.momentum[0],
            self.momentum[1],
            self.variance[0],
            self.variance[1],
            self.learning_rate,
            self.beta_powers[0],
            self.beta_powers[1],
            self.phase,
            self.steps_in_phase,
            self.predict_phases,
            self.prediction_error,
            self.peak_rate,
            self.earlier_rate.unwrap_or(0.0),
            f64::from(u8::from(self.earlier_rate.is_some())),
        ]
    }

    pub(super) fn from_array(x: &[f32]) -> Self {
        let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        Self {
            seen: x[0] > 0.0,
            step: x[1],
            momentum: [x[2], x[3]],
            variance: [x[4], x[5]],
            learning_rate: x[6],
            beta_powers: [x[7], x[8]],
            phase: x[9].clamp(0.0, 3.0),
            steps_in_phase: x[10],
            predict_phases: x[11],
            prediction_error: x[12],
            peak_rate: x[13],
            earlier_rate: (x[15] > 0.0).then_some(x[14]),
        }
    }
}

/// The mark of an input that was not finite.
pub(super) fn flagged(prediction_error: f64, finite: bool) -> f64 {
    if finite { prediction_error } else { BOUND }
}
