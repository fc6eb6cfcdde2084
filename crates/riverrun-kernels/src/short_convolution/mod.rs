//! The short causal convolution along time, channel by channel:
//!
//! ```text
//! y_t = Σ_j w_j ∘ x_{t-K+1+j} + bias       x, y: [B, T, D]     w: [K, D]     state: [B, K-1, D]
//! ```
//!
//! The state holds the inputs before the first step, the last one last; after the last step it holds those that the next step
//! would see. Where `reset[b, t]` is set, step `t` and later ones see zeros in place of the inputs before `t`, whatever these
//! hold, and no gradient passes back through it.
//!
//! **Precision.** Storage `f32`, `f16`, `bf16` (`f64` on the CPU); sums in `f32` (`f64` for `f64`), rounded once. The order of
//! every sum is fixed by the shape, so results are bit-equal from run to run and for any number of threads.
//!
//! Source: De et al., *Griffin* (2024), section 2.3.

pub mod cpu;
#[cfg(feature = "gpu")]
pub mod gpu;

/// The sizes of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Sequences, `B ≥ 0`.
    pub batch: usize,
    /// Steps of each, `T ≥ 0`.
    pub steps: usize,
    /// Channels, `D ≥ 1`.
    pub dim: usize,
    /// Weights of each channel, `K ≥ 1`.
    pub taps: usize,
}

impl Shape {
    /// `B·T`. Saturates at `usize::MAX`, here and below, which is no buffer's length.
    pub fn rows(self) -> usize {
        self.batch.saturating_mul(self.steps)
    }

    /// Elements of `x` and `y`.
    pub fn elements(self) -> usize {
        self.rows().saturating_mul(self.dim)
    }

    /// Elements of the weight.
    pub fn weights(self) -> usize {
        self.taps.saturating_mul(self.dim)
    }

    /// Inputs of a sequence that a step sees besides its own.
    pub fn before(self) -> usize {
        self.taps.saturating_sub(1)
    }

    /// Elements of a state.
    pub fn state(self) -> usize {
        let rows = self.batch.saturating_mul(self.before());
        rows.saturating_mul(self.dim)
    }
}
