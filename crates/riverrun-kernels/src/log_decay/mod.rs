//! Step sizes of channels, and the logarithms of the decays that they make:
//!
//! ```text
//! Δ = softplus(a + dt_bias)     g = -e^(A_log) Δ      a, Δ, g: [R, H E]     A_log: [H]     dt_bias: [H E]
//! ```
//!
//! for `R` rows and `H` heads of `E` channels each.
//!
//! **Precision.** `a` and `g` in `f32`, `f16`, `bf16` (`f64` on the CPU); the parameters, their gradients and `Δ` in `f32` (`f64` for
//! `f64`), as the arithmetic; every result rounded once. The order of every sum is fixed by the shape and the device, so results are
//! bit-equal from run to run and for any number of threads.
//!
//! Source: Dao and Gu, *Transformers are SSMs* (2024), section 7; Yang et al., *Gated Delta Networks* (2024), section 3.

pub mod cpu;
#[cfg(feature = "gpu")]
pub mod gpu;

/// The sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    /// `R ≥ 0`.
    pub rows: usize,
    /// `H ≥ 1`.
    pub heads: usize,
    /// `E ≥ 1`.
    pub each: usize,
}

impl Shape {
    /// Channels, `H E`. Saturates at `usize::MAX`, which is no buffer's length.
    pub fn dim(self) -> usize {
        self.heads.saturating_mul(self.each)
    }

    /// Elements of `a`.
    pub fn elements(self) -> usize {
        self.rows.saturating_mul(self.dim())
    }
}
