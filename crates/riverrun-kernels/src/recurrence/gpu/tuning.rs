//! The numbers that shape a launch.

use super::Dtype;
use crate::recurrence::{Problem, Routine};

/// The numbers that shape a launch; [`Tuning::default_for`] holds the measured ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    /// Channels a unit works on (a vector), at most; the largest that divides the layout is taken.
    pub vector: usize,
    /// Steps a unit keeps in registers.
    pub len: usize,
    /// Forward: keep the inputs and compute the coefficients twice, rather than keep the coefficients.
    pub recompute: bool,
    /// Chained: planes of 32 units a cube.
    pub planes: usize,
    /// Chained: tiles of a group, a plane; 0 for a chain without groups.
    pub share: usize,
    /// Chunked: steps a chunk (a multiple of `len`).
    pub chunk: usize,
    /// Units a cube, for the routines that are not chained.
    pub cube: u32,
}

impl Tuning {
    /// The tuning for a problem.
    pub fn default_for(problem: &Problem, dtype: Dtype, backward: bool, routine: Routine) -> Self {
        let lanes = problem.shape.state();
        // Enough chunks that 256 k units have work, but none so short that its map costs more than it.
        let chunk = (lanes * problem.shape.steps)
            .div_ceil(1 << 18)
            .clamp(32, 256);
        let (vector, len, planes) = match (routine, dtype.size(), backward) {
            (Routine::Chained, _, _) if lanes <= 4096 => (2, 16, 16),
            (Routine::Chained, 4, _) => (2, 16, 8),
            (Routine::Chained, _, false) => (4, 8, 8),
            (Routine::Chained, _, true) => (4, 8, 4),
            (_, _, false) => (1, 8, 8),
            (_, _, true) => (2, 16, 8),
        };
        Self {
            vector,
            len,
            recompute: false,
            planes,
            share: usize::from(lanes <= 512),
            chunk: chunk.next_multiple_of(len),
            cube: 64,
        }
    }
}
