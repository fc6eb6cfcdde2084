//! Long sequences of few heads, in segments that run at the same time: the state after a segment is an affine map of the one before it.
//!
//! ```text
//! S ← A S + B       D ← Aᵀ D + E
//! ```
//!
//! A pass over all segments at once finds `A` from the identity without values, and `B` from zeros; a backward pass likewise `E`. Then
//! [`carry`](super::carry) goes from segment to segment in `f32`, and the passes begin each segment with what it found. That is twice
//! the work of a pass, in a time divided by the segments.

use cubecl::client::Client;

use super::Form;
use super::scores::SizesLaunch;
use super::tile::CHUNK;
use crate::gpu::multiprocessors;
use crate::matrix_state::Problem;

/// Chunks of a segment at least.
const LEAST: usize = 16;

/// The segments of every sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Segments {
    pub count: usize,
    /// Chunks of each but the last.
    chunks: usize,
}

impl Segments {
    pub fn one(problem: &Problem) -> Self {
        Self {
            count: 1,
            chunks: problem.shape.steps.div_ceil(CHUNK),
        }
    }

    /// As many as fill the card. Less than four would not pay for the second pass.
    pub fn choose(client: &Client, problem: &Problem, form: Form) -> Self {
        let one = Self::one(problem);
        let columns = 16 * form.planes;
        let cubes = problem.shape.states() * (form.key + form.value) / columns;
        let most = (2 * multiprocessors(client) / cubes).min(one.chunks / LEAST);
        if most < 4 || !form.key.is_multiple_of(columns) {
            return one;
        }
        let chunks = one.chunks.div_ceil(most);
        Self {
            count: one.chunks.div_ceil(chunks),
            chunks,
        }
    }

    pub fn sizes(self, problem: &Problem, cubes: usize) -> SizesLaunch {
        let shape = problem.shape;
        SizesLaunch::new(
            shape.steps,
            shape.heads,
            shape.key_heads,
            cubes,
            self.count,
            self.chunks,
        )
    }

    /// Segments of all heads.
    pub fn pieces(self, problem: &Problem) -> usize {
        problem.shape.states() * self.count
    }
}
