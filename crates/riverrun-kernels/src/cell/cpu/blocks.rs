//! The backward pass in blocks of steps: the loop over time writes `∂L/∂xg` of a block, and the gradients of the weights read
//! it before the next block.

use std::ops::Range;

use crate::cell::Problem;
use crate::threads::Shared;

/// Rows of `[B·T]` in a block: enough to make reading and writing the sums cheap, few enough to stay in the cache.
const ROWS: usize = 512;

/// The outputs of forward.
#[derive(Clone, Copy)]
pub(super) struct Saved<'a, R> {
    pub h: &'a [R],
    pub saved: &'a [R],
}

/// `∂L/∂xg` of some steps of every sequence. Threads write their own rows and units of it, and read those of others once
/// all are written.
#[derive(Clone)]
pub(super) struct Block<'a, R> {
    pub data: Shared<'a, R>,
    /// The first sequence at the earliest time of the block.
    base: usize,
    /// From sequence to sequence.
    pub stride: usize,
    /// In running order.
    pub steps: Range<usize>,
}

impl<R> Block<'_, R> {
    /// The earliest time of the block.
    pub(super) fn first(&self, problem: &Problem) -> usize {
        let Range { start, end } = self.steps;
        problem.time(start).min(problem.time(end.max(1) - 1))
    }

    /// Where the row of a sequence at a time of the block begins.
    #[inline(always)]
    pub(super) fn place(&self, problem: &Problem, b: usize, time: usize) -> usize {
        self.base + b * self.stride + (time - self.first(problem)) * problem.gate_width()
    }
}

/// Steps in a block. They depend on the problem alone, so that the sums do.
pub(super) fn block_steps(problem: &Problem) -> usize {
    (ROWS / problem.batch.max(1)).clamp(1, problem.steps.max(1))
}

/// The memory of `∂L/∂xg`: all of it, or that of a block of steps.
#[derive(Clone, Copy)]
pub(super) struct GateGrads<'a, R> {
    pub data: Shared<'a, R>,
    /// Steps of a sequence.
    pub held: usize,
}

impl<'a, R> GateGrads<'a, R> {
    /// The place of some steps.
    pub(super) fn block(&self, problem: &Problem, steps: Range<usize>) -> Block<'a, R> {
        let width = problem.gate_width();
        let mut block = Block {
            data: self.data,
            base: 0,
            stride: self.held * width,
            steps,
        };
        if self.held == problem.steps && problem.steps > 0 {
            block.base = block.first(problem) * width;
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
