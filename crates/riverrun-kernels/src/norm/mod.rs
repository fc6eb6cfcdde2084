//! RMSNorm and LayerNorm over the last dimension (Zhang & Sennrich 2019, equation 4; Ba et al. 2016, equation 4).
//!
//! `y = c ρ γ + β`, `ρ = 1 / √(mean c² + ε)`, where `c` is `x` in RMSNorm and `x - mean x` in LayerNorm; `β` may be absent.
//! Backward, with `g = γ d_y` and `m = mean(g c)` over the channels: `d_x = ρ (g - mean g - c ρ² m)`, without `mean g` in
//! RMSNorm; `d_γ = Σ d_y c ρ` and `d_β = Σ d_y` over the rows. The forward pass saves only its inputs.
//!
//! With a residual, `s = x + residual`, rounded to storage, replaces `x` and is a second output; backward, `∂L/∂s` is added to
//! `d_x`, which is the gradient of both `x` and the residual.

pub mod cpu;
#[cfg(feature = "gpu")]
pub mod gpu;

/// The norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Division by the root of the mean square.
    Rms,
    /// Subtraction of the mean and division by the deviation.
    Layer,
}

impl Kind {
    /// Both.
    pub const ALL: [Kind; 2] = [Kind::Rms, Kind::Layer];

    /// The name in tables and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Rms => "rms-norm",
            Kind::Layer => "layer-norm",
        }
    }
}

/// The norm and its parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spec {
    /// The norm.
    pub kind: Kind,
    /// Added to the mean square.
    pub epsilon: f64,
}

/// Bytes that a pass over `[rows, D]` reads and writes, each tensor once, with elements of `element` bytes.
pub fn bytes(shape: [usize; 2], residual: bool, backward: bool, element: usize) -> usize {
    let streams = match (backward, residual) {
        (false, false) => 2,
        (false, true) => 4,
        (true, false) => 3,
        (true, true) => 4,
    };
    let [rows, dim] = shape;
    (streams * rows + if backward { 2 } else { 1 }) * dim * element
}
