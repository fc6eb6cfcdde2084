//! A product of a few rows with a matrix, in one launch with the norm before it and what follows it. A model that takes one step
//! at a time has nothing else, and on a GPU the launches of a step take longer than its bytes.
//!
//! `p = x ρ γ W + b`, where `ρ = 1 / √(mean x² + ε)` and `γ` are those of RMSNorm and absent without it; [`Then`] says what becomes
//! of `p`. All sums are in `f32`, and `x ρ γ` is not rounded to storage. Up to [`MATRICES`] products of the same `x` are one launch.

use crate::recurrence::Gate;

#[cfg(feature = "gpu")]
pub mod gpu;

/// Matrices at most.
pub const MATRICES: usize = 3;

/// What follows a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Then {
    /// `y = p`, for each matrix.
    Nothing,
    /// `y = gelu(p)`, with the hyperbolic tangent.
    Gelu,
    /// `y = SiLU(p) q`, where `q` is the product of a second matrix.
    Gated,
    /// `y = r + p`, `r` of the shape of `y`.
    Add,
    /// A step of a linear recurrence: `p` has the gate's inputs side by side, `h = a h + b` replaces the state, and `y = x + h`.
    Step(Gate),
}

impl Then {
    /// Products of a matrix for each number of `y`.
    pub fn parts(self) -> usize {
        match self {
            Then::Step(gate) => gate.inputs(),
            _ => 1,
        }
    }

    /// Whether it takes so many matrices.
    pub fn takes(self, matrices: usize) -> bool {
        match self {
            Then::Nothing => (1..=MATRICES).contains(&matrices),
            Then::Gated => matrices == 2,
            _ => matrices == 1,
        }
    }
}

/// A matrix `W`, `[inputs, columns]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Matrix {
    /// Numbers of a row.
    pub columns: usize,
    /// Numbers from one row to the next, no fewer.
    pub stride: usize,
}

/// Products and what is around them.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// Rows of `x`.
    pub rows: usize,
    /// Numbers of a row of `x`.
    pub inputs: usize,
    /// As many as [`Then::takes`].
    pub matrices: Vec<Matrix>,
    /// `ε`, where there is a norm.
    pub norm: Option<f64>,
    /// Whether there is a bias: for one matrix alone.
    pub bias: bool,
    /// What follows.
    pub then: Then,
}

impl Problem {
    /// Numbers from the first of a matrix to its last.
    pub fn weights(&self, matrix: Matrix) -> usize {
        (self.inputs.max(1) - 1) * matrix.stride + matrix.columns
    }

    /// Numbers of a row of each `y`.
    pub fn widths(&self) -> Vec<usize> {
        let outputs = match self.then {
            Then::Gated => 1,
            _ => self.matrices.len(),
        };
        let parts = self.then.parts();
        let matrices = self.matrices.iter().take(outputs);
        matrices.map(|matrix| matrix.columns / parts).collect()
    }
}
