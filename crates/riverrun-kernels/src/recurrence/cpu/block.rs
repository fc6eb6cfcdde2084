//! One block of channels of one sequence: the work of a thread.
//!
//! Time is the outer loop and a row of channels the inner one: rows are what memory streams. Carries stay in the
//! first-level cache.

use std::marker::PhantomData;
use std::ops::Range;

use pulp::Simd;

use crate::Element;
use crate::recurrence::{Problem, Rows, RowsMut};
use crate::simd::cache_hints::prefetch;
use crate::simd::pair::{LANES, load, load_padded, pair_len, store, store_padded};
use crate::simd::real::Real;

/// The most channels of a block, a multiple of [`LANES`].
pub const WIDTH: usize = 1024;

/// Channels that are computed before they are stored past the caches, a multiple of [`LANES`]: enough for whole cache lines,
/// few enough that loads continue in between.
pub const PIECE: usize = 256;

/// The operands of both passes.
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
    /// Whether rows are streamed from and to memory, past the caches.
    pub streaming: bool,
    pub gate: PhantomData<C>,
}

impl<E: Element, C, const N: usize> Block<'_, E, C, N> {
    /// The time of the `s`-th step in running order.
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

    /// The block's pieces: ranges of its channels, counted from its first. They begin at multiples of [`LANES`].
    #[inline(always)]
    pub fn pieces(&self) -> impl DoubleEndedIterator<Item = Range<usize>> + use<E, C, N> {
        let width = self.channels.len();
        let piece = if self.streaming { PIECE } else { WIDTH };
        (0..width.div_ceil(piece)).map(move |i| i * piece..width.min((i + 1) * piece))
    }

    #[inline(always)]
    pub fn row<'r>(&self, rows: &Rows<'r, E>, t: usize, piece: &Range<usize>) -> &'r [E] {
        let start = self.channels.start;
        &rows.row(self.b, t)[start + piece.start..start + piece.end]
    }

    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "a block has its rows to itself")]
    pub fn row_mut<'r>(&self, rows: &'r RowsMut<E>, t: usize, piece: &Range<usize>) -> &'r mut [E] {
        let start = self.channels.start;
        // SAFETY: no other block has this sequence and these channels, rows do not overlap, and a kernel drops a row before it
        // takes another of the same tensor.
        unsafe { rows.row_mut(self.b, t, start + piece.start..start + piece.end) }
    }

    /// Whether the kernel prefetches the next row: if rows come from memory and have gaps between them. The hardware prefetcher
    /// follows contiguous rows but restarts at each gap.
    #[inline(always)]
    pub fn fetches_ahead(&self) -> bool {
        let adjoin = |input: &&Rows<E>| input.steps_adjoin(self.channels.len());
        self.streaming && !self.inputs.iter().all(adjoin)
    }
}

/// The carries of a block, one register pair after the other, in the order that pairs have in registers.
pub struct Carry<R>([R; WIDTH]);

impl<R: Real> Carry<R> {
    /// Zeros.
    #[inline(always)]
    pub fn zeros() -> Self {
        Self([R::ZERO; WIDTH])
    }

    /// Starts from a state.
    #[inline(always)]
    pub fn set<S: Simd, E: Element<Acc = R>>(&mut self, simd: S, state: &[E]) {
        let n = pair_len::<S, R>();
        for (carry, state) in self.0.chunks_exact_mut(n).zip(state.chunks(n)) {
            store(carry, load_padded(simd, state));
        }
    }

    /// Narrows to a state.
    #[inline(always)]
    pub fn get<S: Simd, E: Element<Acc = R>>(&self, simd: S, state: &mut [E]) {
        let n = pair_len::<S, R>();
        for (carry, state) in self.0.chunks_exact(n).zip(state.chunks_mut(n)) {
            store_padded(state, load(simd, carry));
        }
    }

    /// Restarts from zero.
    #[inline(always)]
    pub fn clear(&mut self, channels: usize) {
        self.0[..channels.next_multiple_of(LANES)].fill(R::ZERO);
    }

    /// The carries of a piece.
    #[inline(always)]
    pub fn piece(&mut self, piece: &Range<usize>) -> &mut [R] {
        &mut self.0[piece.start..piece.end.next_multiple_of(LANES)]
    }
}

/// Prefetches the cache lines of a row's pair that begins at `at`, if the row is that long.
#[inline(always)]
pub fn prefetch_unit<S: Simd, E: Element>(row: &[E], at: usize) {
    for i in (0..pair_len::<S, E::Acc>()).step_by(64 / size_of::<E>()) {
        if let Some(x) = row.get(at + i) {
            prefetch(x);
        }
    }
}
