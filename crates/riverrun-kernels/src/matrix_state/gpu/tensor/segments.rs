//! Long sequences of few heads, in segments that run at the same time: the state after a segment is an affine map of the one before it.
//!
//! ```text
//! S ← A S + B       D ← Aᵀ D + E
//! ```
//!
//! A pass over all segments at once finds `A` from the identity without values, and `B` from zeros; a backward pass likewise `E`. Then
//! [`carry`](super::carry) goes from segment to segment in `f32`, and the passes begin each segment with what it found. That is twice
//! the work of a pass, in a time divided by the segments.
//!
//! Where that does not pay, the outputs of both halves of a sequence are still found at the same time, after a pass over the first half
//! that makes its state alone. The products of states are those of one segment, and so are the bits.

use cubecl::client::Client;

use super::Form;
use super::forward::Results;
use super::scores::SizesLaunch;
use super::tile::CHUNK;
use crate::gpu::multiprocessors;
use crate::matrix_state::Problem;

/// Chunks of a segment at least.
const LEAST: usize = 16;

/// Chunks at least of a sequence that is divided into halves.
const LEAST_OF_HALVES: usize = 32;

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

    /// Two segments, if the multiprocessors take the cubes of both at the same time.
    pub fn halves(client: &Client, problem: &Problem, form: Form) -> Option<Self> {
        let chunks = Self::one(problem).chunks;
        let cubes = problem.shape.states() * form.tiles(Results::Outputs);
        let pays = chunks >= LEAST_OF_HALVES && 2 * cubes <= multiprocessors(client);
        pays.then(|| Self {
            count: 2,
            chunks: chunks.div_ceil(2),
        })
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
