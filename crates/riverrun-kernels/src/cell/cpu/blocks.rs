//! The backward pass in blocks of steps: the loop over time leaves `∂L/∂xg` of a block, and the gradients of the weights take
//! it from there before the next block.

use std::ops::Range;

use crate::cell::Problem;

/// Rows of `[B·T]` in a block: enough to make reading and writing the sums cheap, few enough to stay in the cache.
const ROWS: usize = 512;

/// What forward left.
#[derive(Clone, Copy)]
pub(super) struct Kept<'a, R> {
    pub h: &'a [R],
    pub saved: &'a [R],
}

/// `∂L/∂xg` of some steps of every sequence.
#[derive(Debug, Clone)]
pub(super) struct Block<R> {
    /// Of the first sequence, at the earliest time of the block.
    pub at: *mut R,
    /// From sequence to sequence.
    pub stride: usize,
    /// In running order.
    pub steps: Range<usize>,
}

// SAFETY: threads write their own rows of a block, and read those of others once all are written.
unsafe impl<R: Sync> Sync for Block<R> {}

impl<R> Block<R> {
    /// The earliest time of the block.
    pub(super) fn first(&self, problem: &Problem) -> usize {
        let Range { start, end } = self.steps;
        problem.time(start).min(problem.time(end.max(1) - 1))
    }
}

/// Steps in a block. They depend on the problem alone, so that the sums do.
pub(super) fn block_steps(problem: &Problem) -> usize {
    (ROWS / problem.batch.max(1)).clamp(1, problem.steps.max(1))
}

/// Where `∂L/∂xg` is kept: all of it, or that of a block of steps.
pub(super) struct Room<R> {
    pub at: *mut R,
    /// Steps of a sequence.
    pub held: usize,
}

impl<R> Room<R> {
    /// The place of some steps.
    pub(super) fn block(&self, problem: &Problem, steps: Range<usize>) -> Block<R> {
        let width = problem.gate_width();
        let mut block = Block {
            at: self.at,
            stride: self.held * width,
            steps,
        };
        if self.held == problem.steps {
            block.at = self.at.wrapping_add(block.first(problem) * width);
        }
        block
    }
}

/// Blocks of steps, the last first.
pub(super) fn blocks(problem: &Problem) -> impl Iterator<Item = Range<usize>> {
    let (steps, long) = (problem.steps, block_steps(problem));
    (0..steps.div_ceil(long))
        .rev()
        .map(move |index| index * long..steps.min((index + 1) * long))
}
