//! One sequence and one block of its channels: what a thread works on, and how its rows are taken apart.
//!
//! Time is the outer loop and a row of channels the inner one, taken [`LANES`] channels at a time: rows are what memory
//! streams, and lanes are what fills vector registers. The carries of a block stay in the first-level cache.

use std::marker::PhantomData;
use std::ops::Range;

use super::lanes::LANES;
use crate::Element;
use crate::real::Real;
use crate::recurrence::{Problem, Rows, RowsMut};

/// The most channels of a block, a multiple of [`LANES`]: their carries and rows fit the first-level cache.
pub const WIDTH: usize = 1024;

/// What both passes work on.
pub struct Block<'a, E, C, const N: usize> {
    pub problem: &'a Problem,
    pub inputs: [&'a Rows<'a, E>; N],
    /// The block's part of `h_0`.
    pub h0: Option<&'a [E]>,
    /// The sequence's resets.
    pub reset: Option<&'a [bool]>,
    /// The sequence.
    pub b: usize,
    pub channels: Range<usize>,
    /// Whether to store past the caches.
    pub streaming: bool,
    pub gate: PhantomData<C>,
}

impl<E, C, const N: usize> Block<'_, E, C, N> {
    /// The place in time of the step that runs as number `s`.
    #[inline(always)]
    pub fn time(&self, s: usize) -> usize {
        if self.problem.reverse {
            self.problem.shape.steps - 1 - s
        } else {
            s
        }
    }

    #[inline(always)]
    pub fn is_reset(&self, t: usize) -> bool {
        self.reset.is_some_and(|reset| reset[t])
    }

    #[inline(always)]
    pub fn row<'r>(&self, rows: &Rows<'r, E>, t: usize) -> Row<'r, E> {
        Row::new(&rows.row(self.b, t)[self.channels.clone()])
    }

    /// The rows of all inputs.
    #[inline(always)]
    pub fn input_rows(&self, t: usize) -> [Row<'_, E>; N] {
        let mut rows = [Row::EMPTY; N];
        for k in 0..N {
            rows[k] = self.row(self.inputs[k], t);
        }
        rows
    }

    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "a block has its rows to itself")]
    pub fn row_mut<'r>(&self, rows: &'r RowsMut<E>, t: usize) -> &'r mut [E] {
        // SAFETY: no other block has this sequence and these channels, rows do not overlap, and a kernel lets go of
        // a row before it asks for another of the same tensor.
        unsafe { rows.row_mut(self.b, t, self.channels.clone()) }
    }

    /// Whether the rows of an input leave gaps. Prefetchers of the machine follow rows that adjoin, but stumble at every
    /// gap; there the kernel has to ask for the next row while it works on one.
    #[inline(always)]
    pub fn has_gaps(&self) -> bool {
        self.inputs
            .iter()
            .any(|input| !input.steps_adjoin(self.channels.len()))
    }
}

/// A row of a block: its channels in whole lanes, and those that are left.
#[derive(Debug)]
pub struct Row<'a, E> {
    pub lanes: &'a [[E; LANES]],
    pub rest: &'a [E],
}

// Not derived, because `E` itself need not be `Copy` for it.
impl<E> Copy for Row<'_, E> {}
impl<E> Clone for Row<'_, E> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<'a, E> Row<'a, E> {
    /// No channels.
    pub const EMPTY: Self = Self {
        lanes: &[],
        rest: &[],
    };

    #[inline(always)]
    pub fn new(channels: &'a [E]) -> Self {
        let (lanes, rest) = channels.as_chunks();
        Self { lanes, rest }
    }

    /// The first `n` lanes, all there are, and no rest: where the compiler sees that several rows are equally long, it
    /// checks no index in the loop over them.
    #[inline(always)]
    pub fn first(self, n: usize) -> Self {
        Self {
            lanes: &self.lanes[..n],
            rest: &[],
        }
    }
}

impl<E: Element> Row<'_, E> {
    /// The channels left over, with zeros after them.
    #[inline(always)]
    pub fn padded(self) -> [E; LANES] {
        let mut lanes = [E::ZERO; LANES];
        lanes[..self.rest.len()].copy_from_slice(self.rest);
        lanes
    }
}

/// What a block of channels carries from step to step, lane by lane.
pub struct Carry<E: Element>([[E::Acc; LANES]; WIDTH / LANES]);

impl<E: Element> Carry<E> {
    /// Zeros.
    #[inline(always)]
    pub fn zeros() -> Self {
        Self([[E::Acc::ZERO; LANES]; WIDTH / LANES])
    }

    /// The lanes of a block of so many channels, with a state in them if there is one.
    #[inline(always)]
    pub fn start(&mut self, channels: usize, state: Option<&[E]>) -> &mut [[E::Acc; LANES]] {
        let carry = &mut self.0[..channels.div_ceil(LANES)];
        for (carry, x) in carry
            .as_flattened_mut()
            .iter_mut()
            .zip(state.unwrap_or_default())
        {
            *carry = x.widen();
        }
        carry
    }
}
