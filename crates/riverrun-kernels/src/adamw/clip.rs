//! What gradients are multiplied by so that their norm, all together, is at most a bound; and the factor by which a loss in
//! `f16` is scaled up to keep them within the format's range.
//!
//! Source: Micikevicius et al., *Mixed Precision Training* (2018), section 3.2.

/// Good steps in a row after which the loss's factor doubles.
pub const PATIENCE: f64 = 2000.0;
/// Where it stops doubling: far above any use, and a loss of 10⁴ times it is still finite in `f32`.
pub const MOST: f64 = (1u64 << 40) as f64;
/// Added to the norm.
pub const EPSILON: f64 = 1e-6;

/// What is known of a loss's scale, each number in `f32` on devices.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    /// What the loss is multiplied by.
    pub factor: f64,
    /// Steps since the last overflow or doubling.
    pub streak: f64,
    /// Steps skipped.
    pub skipped: f64,
}

/// How many numbers a [`Scale`] has, in their order.
pub const SCALE_NUMBERS: usize = 3;

impl Scale {
    /// Of its numbers.
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

/// What gradients are to be multiplied by, of the sum of their squares: `min(1, bound / norm)`, after the loss's factor has
/// been divided out of both. Then adapts the scale.
///
/// Where the norm is not finite, 0 with a scale: the step is to be skipped, the loss's factor is halved. Without one NaN, to
/// be seen in the weights.
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
