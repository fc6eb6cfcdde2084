//! RMSNorm over the last dimension (Zhang & Sennrich 2019, equation 4).
//!
//! `y = x r γ`, `r = 1 / √(mean x² + ε)`. Backward, with `g = γ d_y` and `m = mean(g x)` over the channels:
//! `d_x = r (g - x r² m)`, `d_γ = Σ d_y x r` over the rows. Nothing is kept from the forward pass but its inputs.

pub mod cpu;
pub mod oracle;
