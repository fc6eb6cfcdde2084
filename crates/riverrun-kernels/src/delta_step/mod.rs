//! A step of a Gated DeltaNet between its products, in one launch on GPUs, where the launches of a step take longer than its bytes.
//!
//! ```text
//! c = SiLU(Σ_j w_j ∘ x_{t-K+1+j})                  of queries beside keys beside values
//! q = c_q / (√K √(|c_q|² + 10⁻⁶))    k = c_k / √(|c_k|² + 10⁻⁶)    v = c_v
//! β = σ(b), or twice that    g = -e^(A_log) softplus(a + dt_bias)
//! S' = e^g S    S ← S' + k (β (v - S'ᵀ k))ᵀ    o = Sᵀ q
//! y = o / √(mean o² + ε) ∘ γ ∘ SiLU(z)
//! ```
//!
//! for each of `H` heads, of which `H / J` in a row share queries and keys. The inputs of the convolution and the states are
//! overwritten with the next ones. Storage `f32`, `f16` or `bf16`, states and arithmetic in `f32`: unlike a layer of several launches it
//! rounds nothing in between. The order of every sum is fixed.
//!
//! Source: Yang et al., *Gated Delta Networks* (2024), section 3.

#[cfg(feature = "gpu")]
pub mod gpu;

/// The sizes of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Sequences, `B`.
    pub batch: usize,
    /// Heads of queries and keys, `J ≥ 1`.
    pub key_heads: usize,
    /// Heads of values and of the state, `H`: a multiple of `J`.
    pub heads: usize,
    /// Rows of a state, `K ≥ 1`.
    pub key: usize,
    /// Columns of a state, `V ≥ 1`.
    pub value: usize,
    /// Weights of a channel of the convolution, at least 2.
    pub taps: usize,
}

impl Shape {
    /// Channels of the convolution: `2 J K + H V`. Saturates at `usize::MAX`, here and below, which is no buffer's length.
    pub fn channels(self) -> usize {
        let keys = self.key_heads.saturating_mul(self.key).saturating_mul(2);
        keys.saturating_add(self.width())
    }

    /// Numbers of a result: `H V`.
    pub fn width(self) -> usize {
        self.heads.saturating_mul(self.value)
    }

    /// Numbers of all states.
    pub fn states(self) -> usize {
        let rows = self.batch.saturating_mul(self.key);
        rows.saturating_mul(self.width())
    }
}

/// A step without its tensors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Problem {
    /// The sizes.
    pub shape: Shape,
    /// `ε` of the norm of the result.
    pub epsilon: f64,
    /// Whether `β` reaches 2 instead of 1.
    pub twice: bool,
}
