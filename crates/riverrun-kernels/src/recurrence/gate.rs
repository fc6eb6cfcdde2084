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
}

impl Gate {
    /// The number of `[B, T, D]` inputs.
    pub fn inputs(self) -> usize {
        match self {
            Gate::Raw | Gate::Sigmoid | Gate::MinGru { .. } => 2,
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
        gates
    }
}
