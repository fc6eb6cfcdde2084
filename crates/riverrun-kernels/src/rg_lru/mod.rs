//! The gates of the RG-LRU: from the products of the layer to the inputs of its scan,
//!
//! ```text
//! r_t = σ(p_t + b_r)     i_t = σ(q_t + b_i)     out_t = (rate ∘ r_t, i_t ∘ x_t)
//! p, q, x: [B, T, D]     rate: [D]     b_r, b_i: [D], beside each other     out: [B, T, 2 D]
//! ```
//!
//! where `p = W_r x`, `q = W_i x`. At a step that [restarts](Problem::forget) the rate is [`NO_MEMORY`] and has no gradient: the
//! state before it has no influence, and its input is not scaled down.
//!
//! **Precision.** Storage `f32`, `f16`, `bf16` (`f64` on the CPU); arithmetic in `f32` (`f64` for `f64`), each result rounded
//! once. The order of every sum is fixed by the shape.
//!
//! Source: De et al., *Griffin* (2024), section 2.4; Botev et al., *RecurrentGemma* (2024), for the steps that restart.

pub mod cpu;
#[cfg(feature = "gpu")]
pub mod gpu;

/// The rate of decay at a step whose state before it has no influence: there `a` vanishes and `√(1 - a²)` is 1.
pub const NO_MEMORY: f64 = 100.0;

/// Sizes, and the steps that restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Problem {
    /// Sequences, `B ≥ 0`.
    pub batch: usize,
    /// Steps of each, `T ≥ 0`.
    pub steps: usize,
    /// Hidden units, `D ≥ 1`.
    pub dim: usize,
    /// Steps with a reset restart.
    pub forget: bool,
    /// The first step of each sequence restarts.
    pub first: bool,
}

impl Problem {
    /// `B·T`. Saturates at `usize::MAX`, here and below, which is no buffer's length.
    pub fn rows(self) -> usize {
        self.batch.saturating_mul(self.steps)
    }

    /// Elements of `x`.
    pub fn elements(self) -> usize {
        self.rows().saturating_mul(self.dim)
    }
}
