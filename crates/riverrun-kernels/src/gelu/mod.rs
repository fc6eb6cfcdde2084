//! GELU in its tanh form (Hendrycks & Gimpel 2016, section 2).
//!
//! `y = x/2 (1 + tanh u) = x σ(2u)`, `u = √(2/π) (x + 0.044715 x³)`, and
//! `dy/dx = σ(2u) + x σ(2u) σ(-2u) 2u'`, `u' = √(2/π) (1 + 3 · 0.044715 x²)`.

pub mod cpu;

/// `2 √(2/π)`.
pub const TWICE: f64 = 1.595_769_121_605_731;
/// The weight of the cube.
pub const CUBE: f64 = 0.044_715;
