//! One sequence and one block of its channels: what a thread works on, and how its rows are taken apart.
//!
//! Time is the outer loop and a row of channels the inner one, taken [`LANES`] channels at a time: rows are what memory
//! streams, and lanes are what fills vector registers. The carries of a block stay in the first-level cache.
//!
//! In the loops over lanes, results leave by value: the compiler then knows that no output is also an input, without
//! which it would keep the order of every load and store and vectorise nothing. Inputs come by reference, because an
//! array that comes by value is copied whole for every lane.

use std::marker::PhantomData;
use std::ops::Range;

use crate::Element;
use crate::memory::Streaming;
use crate::real::Real;
use crate::recurrence::{Problem, Rows, RowsMut};

/// Channels computed together: a power of two that fills the widest vector registers.
pub const LANES: usize = 16;

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

    #[inline(always)]
    pub fn permission(&self) -> Option<Streaming> {
        // Blocks with a rest of channels would mix both kinds of store in one cache line.
        let whole = self.channels.len().is_multiple_of(LANES);
        (self.streaming && whole).then(Streaming::new)
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

    /// The first `n` lanes, all there are: where the compiler sees that several rows are equally long, it checks no
    /// index in the loop over them.
    #[inline(always)]
    pub fn first(self, n: usize) -> &'a [[E; LANES]] {
        &self.lanes[..n]
    }
}

impl<E: Element> Row<'_, E> {
    /// The channels left over, with zeros after them.
    #[inline(always)]
    pub fn padded(self) -> [E; LANES] {
        let mut lanes = [E::default(); LANES];
        lanes[..self.rest.len()].copy_from_slice(self.rest);
        lanes
    }
}

/// What a block of channels carries from step to step.
pub struct Carry<E: Element> {
    pub lanes: [[E::Acc; LANES]; WIDTH / LANES],
    /// Of `lanes`, how many the block has.
    used: usize,
}

impl<E: Element> Carry<E> {
    /// The block's part of a state, zero if there is none.
    #[inline(always)]
    pub fn new(channels: usize, state: Option<&[E]>) -> Self {
        let mut lanes = [[E::Acc::ZERO; LANES]; WIDTH / LANES];
        for (carry, x) in lanes
            .as_flattened_mut()
            .iter_mut()
            .zip(state.unwrap_or_default())
        {
            *carry = x.widen();
        }
        Self {
            lanes,
            used: channels.div_ceil(LANES),
        }
    }

    #[inline(always)]
    pub fn clear(&mut self) {
        self.lanes[..self.used].fill([E::Acc::ZERO; LANES]);
    }
}

#[inline(always)]
pub fn store<E: Element>(to: &mut [E; LANES], from: &[E; LANES], streaming: Option<&Streaming>) {
    match streaming {
        Some(streaming) => streaming.store(to, from),
        None => *to = *from,
    }
}
