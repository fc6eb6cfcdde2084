//! A product of a few rows with a matrix, in one launch with the norm before it and what follows it. A model that takes one step
//! at a time has nothing else, and on a GPU the launches of a step take longer than its bytes.
//!
//! `p = x ρ γ W + b`, where `ρ = 1 / √(mean x² + ε)` and `γ` are those of RMSNorm and absent without it; [`Then`] says what becomes
//! of `p`. All sums are in `f32`, and `x ρ γ` is not rounded to storage.

use crate::recurrence::Gate;

#[cfg(feature = "gpu")]
pub mod gpu;

/// What follows a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Then {
    /// `y = p`.
    Nothing,
    /// `y = gelu(p)`, with the hyperbolic tangent.
    Gelu,
    /// `y = r + p`, `r` of the shape of `y`.
    Add,
    /// A step of a linear recurrence: `p` has the gate's inputs side by side, `h = a h + b` replaces the state, and `y = x + h`.
    Step(Gate),
}

impl Then {
    /// Products for each number of `y`.
    pub fn parts(self) -> usize {
        match self {
            Then::Step(gate) => gate.inputs(),
            _ => 1,
        }
    }
}

/// A product and what is around it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Problem {
    /// Rows of `x`.
    pub rows: usize,
    /// Numbers of a row of `x`.
    pub inputs: usize,
    /// Numbers of a row of `y`.
    pub width: usize,
    /// Numbers from one row of `W` to the next, at least `width` times the parts.
    pub stride: usize,
    /// `ε`, where there is a norm.
    pub norm: Option<f64>,
    /// Whether there is a bias.
    pub bias: bool,
    /// What follows.
    pub then: Then,
}

impl Problem {
    /// Numbers from the first of `W` to its last.
    pub fn weights(&self) -> usize {
        (self.inputs.max(1) - 1) * self.stride + self.products()
    }

    /// Numbers of a row of `p`.
    pub fn products(&self) -> usize {
        self.width * self.then.parts()
    }
}
