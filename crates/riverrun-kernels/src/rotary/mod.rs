//! Rotary positions: of the first heads of a row, channels `i` and `i + P` are turned by an angle of the step,
//!
//! ```text
//! y_i = x_i cos_ti - x_(i+P) sin_ti     y_(i+P) = x_(i+P) cos_ti + x_i sin_ti     x, y: [rows, H, D]     cos, sin: [N, P]
//! ```
//!
//! where row `r` has the angles of step `r mod N`. Channels from `2 P` on and the other heads are copied. The backward pass turns
//! the gradient back: it is the same with [`Problem::back`].
//!
//! **Precision.** Storage `f32`, `f16`, `bf16` (`f64` on the CPU); arithmetic in `f32` (`f64` for `f64`), rounded once.
//!
//! Source: Su et al., *RoFormer* (2021), section 3.2.

pub mod cpu;
#[cfg(feature = "gpu")]
pub mod gpu;

use crate::Error;
use crate::error::expect_length;

/// Sizes and direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Problem {
    /// Rows, a multiple of `steps`.
    pub rows: usize,
    /// Heads of a row, `H`.
    pub heads: usize,
    /// Channels of a head, `D`.
    pub dim: usize,
    /// Steps with angles, `N ≥ 1`.
    pub steps: usize,
    /// Pairs of channels that are turned, `P ≥ 1`, at most `D / 2`.
    pub pairs: usize,
    /// The heads that are turned are the first ones.
    pub turned: usize,
    /// By the negative angles.
    pub back: bool,
}

impl Problem {
    /// Elements of `x`. Saturates at `usize::MAX`, which is no buffer's length.
    pub fn elements(self) -> usize {
        let row = self.heads.saturating_mul(self.dim);
        self.rows.saturating_mul(row)
    }

    /// Elements of a table of angles.
    pub fn angles(self) -> usize {
        self.steps.saturating_mul(self.pairs)
    }

    fn check(self, [x, cos, sin, y]: [usize; 4]) -> Result<(), Error> {
        if self.pairs == 0 || self.steps == 0 || 2 * self.pairs > self.dim {
            return Err(Error::NoChannels);
        }
        expect_length("x", self.elements(), x)?;
        expect_length("cos", self.angles(), cos)?;
        expect_length("sin", self.angles(), sin)?;
        expect_length("y", self.elements(), y)
    }
}
