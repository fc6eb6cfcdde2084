//! Activations, alone and as gates: `y = f(x)` and `y = f(gate) x`, element by element.

pub mod cpu;
#[cfg(feature = "gpu")]
pub mod gpu;

/// `f`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Nonlinearity {
    /// GELU in its tanh form (Hendrycks & Gimpel 2016, section 2): `x/2 (1 + tanh u) = x σ(2u)`, `u = √(2/π) (x + 0.044715 x³)`,
    /// with the slope `σ(2u) + x σ(2u) σ(-2u) 2u'`, `u' = √(2/π) (1 + 3 · 0.044715 x²)`.
    Gelu,
    /// SiLU (Elfwing et al. 2017, section 2): `x σ(x)`, with the slope `σ(x) + x σ(x) σ(-x)`.
    Silu,
    /// The logistic sigmoid `σ(x)`, with the slope `σ(x) σ(-x)`.
    Sigmoid,
}

/// `2 √(2/π)`.
pub const TWICE: f64 = 1.595_769_121_605_731;
/// The weight of the cube in GELU.
pub const CUBE: f64 = 0.044_715;
