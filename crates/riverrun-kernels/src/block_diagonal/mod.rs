//! The block-diagonal linear recurrence
//!
//! ```text
//! h_t = A_t h_{t-1} + b_t          h, b: [B, T, N·P]     A: [B, T, N, P, P]     h_0: [B, N·P], zero when absent
//! ```
//!
//! `N` blocks of `P` channels, each with its own `P × P` matrix at every step (rows first: `h_i = Σ_j A_ij h_j + b_i`);
//! `P = 1` is the raw scan of [`recurrence`](crate::recurrence).
//!
//! **Order.** `t` runs from `0` to `T - 1`, or from `T - 1` to `0` with [`Problem::reverse`]. **Reset.** Where
//! `reset[b, t]` is set, `h_{t-1}` counts as 0 at `t`, whatever it holds, and no gradient passes back through it.
//!
//! **Backward.** With `g_t = ∂L/∂h_t` and `D_t = g_t + A_{t+1}ᵀ D_{t+1}` (plus `∂L/∂h_last` at the last step):
//! `∂L/∂A_t = D_t h_{t-1}ᵀ`, `∂L/∂b_t = D_t`, `∂L/∂h_0 = A_1ᵀ D_1`. It needs `A` and `h`, nothing else saved.
//!
//! **Precision.** Storage `f32`, `f16`, `bf16` (`f64` on the CPU); arithmetic and carries in `f32` (`f64` for `f64`). The
//! order of every sum is fixed by `P`, so results are bit-equal from run to run and for any number of threads.

pub mod cpu;
#[cfg(feature = "gpu")]
pub mod gpu;

use crate::Error;
use crate::error::expect_length;

/// The sizes of a block-diagonal recurrence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Sequences, `B ≥ 0`.
    pub batch: usize,
    /// Steps of each, `T ≥ 0`.
    pub steps: usize,
    /// Blocks of each step, `N ≥ 1`.
    pub blocks: usize,
    /// Channels of each block, `P ≥ 1`.
    pub size: usize,
}

impl Shape {
    /// `N·P`. Saturates at `usize::MAX`, here and below, which is no buffer's length.
    pub fn dim(self) -> usize {
        self.blocks.saturating_mul(self.size)
    }

    /// Rows of `h` and `b`: `B·T`.
    pub fn rows(self) -> usize {
        self.batch.saturating_mul(self.steps)
    }

    /// Elements of `h` and `b`.
    pub fn elements(self) -> usize {
        self.rows().saturating_mul(self.dim())
    }

    /// Elements of `A`.
    pub fn matrices(self) -> usize {
        self.elements().saturating_mul(self.size)
    }

    /// Elements of a state.
    pub fn state(self) -> usize {
        self.batch.saturating_mul(self.dim())
    }
}

/// The problem: sizes and direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Problem {
    /// The sizes.
    pub shape: Shape,
    /// Run from the last step to the first.
    pub reverse: bool,
}

impl Problem {
    /// The time of the `s`-th step in running order.
    pub fn time(&self, s: usize) -> usize {
        if self.reverse {
            self.shape.steps - 1 - s
        } else {
            s
        }
    }

    /// The checks that forward and backward share.
    ///
    /// # Errors
    /// [`Error::NoChannels`], [`Error::Length`].
    pub fn check<E>(
        &self,
        a: &[E],
        h0: Option<&[E]>,
        reset: Option<&[bool]>,
        h: &[E],
    ) -> Result<(), Error> {
        let shape = self.shape;
        if shape.dim() == 0 {
            return Err(Error::NoChannels);
        }
        expect_length("A", shape.matrices(), a.len())?;
        expect_length("h0", shape.state(), h0.map_or(shape.state(), <[E]>::len))?;
        let marks = shape.rows();
        expect_length("reset", marks, reset.map_or(marks, <[bool]>::len))?;
        expect_length("h", shape.elements(), h.len())
    }
}
