//! Clipping of gradients to a bound of their norm, and the loss scale, which keeps the gradients of a loss in `f16` within the
//! format's range.
//!
//! Source: Micikevicius et al., *Mixed Precision Training* (2018), section 3.2.

/// Steps in a row without an overflow after which the loss scale doubles.
pub const PATIENCE: f64 = 2000.0;
/// The largest loss scale: far above any use, and 10⁴ times it is still finite in `f32`.
pub const MOST: f64 = (1u64 << 40) as f64;
/// Added to the norm.
pub const EPSILON: f64 = 1e-6;

/// The state of a loss scale; `f32` on devices.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    /// The factor of the loss.
    pub factor: f64,
    /// Steps since the last overflow or doubling.
    pub streak: f64,
    /// Steps skipped.
    pub skipped: f64,
}

/// The number of fields of a [`Scale`].
pub const SCALE_NUMBERS: usize = 3;

impl Scale {
    /// A scale from its numbers.
    pub fn new([factor, streak, skipped]: [f64; SCALE_NUMBERS]) -> Self {
        Self {
            factor,
            streak,
            skipped,
        }
    }

    /// Its numbers.
    pub fn numbers(self) -> [f64; SCALE_NUMBERS] {
        [self.factor, self.streak, self.skipped]
    }
}

/// The factor of gradients from the sum of their squares: `min(1, bound / norm)`, with the loss scale divided out of both. Then
/// adapts the scale.
///
/// If the norm is not finite: with a scale 0, which skips the step, and the loss scale halves; without one NaN, which shows in
/// the weights.
pub fn clip(squares: f64, bound: f64, scale: Option<&mut Scale>) -> f64 {
    let Some(scale) = scale else {
        return match squares.is_finite() {
            true => (bound / (squares.sqrt() + EPSILON)).min(1.0),
            false => f64::NAN,
        };
    };
    if !squares.is_finite() {
        *scale = Scale {
            factor: (scale.factor * 0.5).max(1.0),
            streak: 0.0,
            skipped: scale.skipped + 1.0,
        };
        return 0.0;
    }
    let norm = squares.sqrt() / scale.factor;
    let factor = (bound / (norm + EPSILON)).min(1.0) / scale.factor;
    scale.streak += 1.0;
    if scale.streak >= PATIENCE {
        scale.streak = 0.0;
        scale.factor = (scale.factor * 2.0).min(MOST);
    }
    factor
}
