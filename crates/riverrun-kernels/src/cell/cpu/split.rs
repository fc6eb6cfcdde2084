//! The division of the work among threads.
//!
//! Sequences are independent, so with enough of them threads need not wait for one another. With fewer, each thread takes
//! some units of all sequences, and a barrier follows every stage (one a step; two where the cell multiplies twice).

/// How the work is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Split {
    /// By measured rule.
    #[default]
    Auto,
    /// One thread.
    None,
    /// Threads take sequences and never wait for one another.
    Batch,
    /// Threads take units of every sequence, with a barrier a step (two where the cell multiplies twice).
    Units,
}

/// A division that fits the problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plan {
    /// This many threads, each with its own sequences. One is the sequential form.
    Batch(usize),
    /// This many threads, each with its own units of every sequence.
    Units(usize),
}

impl Plan {
    /// Fits `split` to `batch` sequences of `steps` steps, `work` multiplications each, whose `hidden` units are distributed
    /// `grain` at a time.
    pub(super) fn new(
        split: Split,
        threads: usize,
        (batch, steps, hidden): (usize, usize, usize),
        grain: usize,
        work: usize,
    ) -> Self {
        // Waking threads costs about as much as this many multiplications; below, one thread does all.
        const WORTH_WAKING: usize = 1 << 21;
        // A barrier costs about as much as this many multiplications from the second-level cache.
        const WORTH_A_BARRIER: usize = 1 << 14;
        let units = threads.min(hidden.div_ceil(grain));
        let batched = Plan::Batch(threads.min(batch).max(1));
        let all = work.saturating_mul(batch).saturating_mul(steps);
        match split {
            Split::None => Plan::Batch(1),
            Split::Batch => batched,
            Split::Units if units > 1 => Plan::Units(units),
            Split::Units => Plan::Batch(1),
            Split::Auto if threads == 1 || all < WORTH_WAKING => Plan::Batch(1),
            Split::Auto if batch >= threads => batched,
            Split::Auto => match units.min(work * batch / WORTH_A_BARRIER) {
                parts if parts > batch => Plan::Units(parts),
                _ => batched,
            },
        }
    }
}
