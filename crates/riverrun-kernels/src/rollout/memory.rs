//! Bytes of a cell, of an ensemble and of a rollout.

use super::{HEADS, Problem};

const F32: usize = 4;

/// Bytes of one GRU: weights `[3H, I]` and `[3H, H]`, one bias a gate.
pub fn cell(hidden: usize, features: usize) -> usize {
    3 * hidden * (features + hidden + 1) * F32
}

/// Bytes of the cells of an ensemble and of its two heads.
pub fn ensemble(problem: &Problem) -> usize {
    let heads = HEADS * problem.combined();
    problem.members * cell(problem.hidden, problem.features) + heads * F32
}

/// Bytes of initial states, features, current loss and results: what a rollout needs beside the ensemble.
pub fn rollout(problem: &Problem) -> usize {
    (problem.members * (problem.hidden + problem.row()) + problem.features + 1) * F32
}

/// Bytes of shared memory that one cube takes, at most: for a member of its own the state, `r ∘ h`, and what its threads add up;
/// in a cluster, which takes less, a word of 8 bytes for each number of the two vectors.
pub fn shared(hidden: usize) -> usize {
    const SUMS: usize = 2 * 256 * 5;
    (2 * hidden + SUMS) * F32
}
