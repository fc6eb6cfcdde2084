//! Gates: how the inputs of a step become the coefficients of the scan.
//!
//! A gate is data; the scan is one. Adding a cell means adding a variant here with its coefficients
//! and their derivatives (and the same two functions for the GPU in `gpu/gate.rs`).

use serde::{Deserialize, Serialize};

/// The candidate's activation `act` in minGRU and minLSTM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Candidate {
    /// `act(u) = u`: the paper's vanilla form (section 3.1.2: the tanh is dropped).
    #[default]
    Identity,
    /// `act(u) = tanh u`.
    Tanh,
    /// `act(u) = u + 1/2` for `u ≥ 0`, `σ(u)` below: always positive, the paper's log-space form (appendix B).
    G,
}

/// How `[B, T, D]` inputs become the coefficients `a` and `b`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Gate {
    /// Two inputs `(a, b)`, used as they are.
    Raw,
    /// Two inputs `(k_a, b)`: `a = σ(k_a)`, `b` as it is. The gated linear RNN.
    Sigmoid,
    /// Two inputs `(k_z, k_h)`: `z = σ(k_z)`, `a = 1 - z`, `b = z · act(k_h)`.
    MinGru {
        /// The candidate's activation.
        candidate: Candidate,
    },
    /// Three inputs `(k_f, k_i, k_h)`: `f = σ(k_f)`, `i = σ(k_i)`, and
    /// `a = f'`, `b = i' · act(k_h)` with `f' = f / (f + i)`, `i' = i / (f + i)` if normalised, else `f`, `i`.
    ///
    /// The normalised gates are computed as `f' = σ(-d)`, `i' = σ(d)`, `d = softplus(-k_f) - softplus(-k_i)`,
    /// which is right where both gates underflow.
    MinLstm {
        /// The candidate's activation.
        candidate: Candidate,
        /// Whether `f' + i' = 1`.
        normalized: bool,
    },
    /// Two inputs `(s, u)`: `a = e^-s`, `b = √(1 - a²) · u`, the RG-LRU of Griffin. `s` is the rate of decay,
    /// `c · softplus(Λ) · σ(r)` there; one below 0 counts as 0, which keeps the state and takes nothing.
    ///
    /// `1 - a²` is computed as `1 - e^-2s` with all its digits, however small `s` is. The slope of its square root is
    /// infinite at `s = 0`; the gradient takes at most [`Gate::STEEPEST_ROOT`] for it, as the authors' own code does:
    /// `∂b/∂s = 2 a² · min(1 / (2 √(1 - a²)), STEEPEST_ROOT) · u`, which differs from the derivative only for `s` below
    /// `1.25e-7`, and for `s < 0` is 0 as `∂a/∂s` is.
    ///
    /// Source: De et al., *Griffin: Mixing Gated Linear Recurrences with Local Attention for Efficient Language Models*
    /// (2024), section 2.4 and appendix A.
    RgLru,
}

impl Gate {
    /// The steepest slope of the square root that the gradients of [`Gate::RgLru`] take.
    pub const STEEPEST_ROOT: f64 = 1000.0;

    /// The number of `[B, T, D]` inputs.
    pub fn inputs(self) -> usize {
        match self {
            Gate::Raw | Gate::Sigmoid | Gate::MinGru { .. } | Gate::RgLru => 2,
            Gate::MinLstm { .. } => 3,
        }
    }

    /// The name used in tables and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Gate::Raw => "raw",
            Gate::Sigmoid => "sigmoid",
            Gate::MinGru {
                candidate: Candidate::Identity,
            } => "min-gru",
            Gate::MinGru {
                candidate: Candidate::Tanh,
            } => "min-gru-tanh",
            Gate::MinGru {
                candidate: Candidate::G,
            } => "min-gru-g",
            Gate::MinLstm {
                candidate: Candidate::Identity,
                normalized: true,
            } => "min-lstm",
            Gate::MinLstm {
                candidate: Candidate::Tanh,
                normalized: true,
            } => "min-lstm-tanh",
            Gate::MinLstm {
                candidate: Candidate::G,
                normalized: true,
            } => "min-lstm-g",
            Gate::MinLstm {
                candidate: Candidate::Identity,
                normalized: false,
            } => "min-lstm-raw",
            Gate::MinLstm {
                candidate: Candidate::Tanh,
                normalized: false,
            } => "min-lstm-raw-tanh",
            Gate::MinLstm {
                candidate: Candidate::G,
                normalized: false,
            } => "min-lstm-raw-g",
            Gate::RgLru => "rg-lru",
        }
    }

    /// Every gate, for tables that run them all.
    pub fn all() -> Vec<Gate> {
        let candidates = [Candidate::Identity, Candidate::Tanh, Candidate::G];
        let mut gates = vec![Gate::Raw, Gate::Sigmoid];
        gates.extend(candidates.map(|candidate| Gate::MinGru { candidate }));
        for normalized in [true, false] {
            gates.extend(candidates.map(|candidate| Gate::MinLstm {
                candidate,
                normalized,
            }));
        }
        gates.push(Gate::RgLru);
        gates
    }
}
