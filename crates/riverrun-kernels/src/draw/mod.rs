//! Draws a symbol of each row of logits: from the softmax of `logits / temperature`, over all symbols or the likeliest.
//!
//! With weights `w_i = exp((l_i - max l) / temperature)`, 0 for a symbol that is left out, and a uniform number `u` in `[0, 1)`, the
//! draw is the first `i` with `w_0 + … + w_i > u Σ w`. At temperature 0 it is the first of the largest logits.

pub mod cpu;
#[cfg(feature = "gpu")]
pub mod gpu;

/// Which symbols are drawn, and how often.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rule {
    /// Logits are divided by it, 0 or more.
    pub temperature: f64,
    /// Symbols that are kept: those whose logit is no smaller than the `top_k`-th largest one. All when absent.
    pub top_k: Option<usize>,
}
