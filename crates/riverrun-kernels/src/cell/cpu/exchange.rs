//! The memory that threads of one sequence share, from one step to the next.

use crate::buffer::Buffer;
use crate::simd::real::Real;
use crate::threads::Shared;

/// Numbers between the end of a row and the next, so that the rows of a tile do not compete for the same places in
/// the cache.
const GAP: usize = 16;

/// The memory of an [`Exchange`].
pub(super) struct ExchangeBuffer<R> {
    data: Buffer<R>,
    stride: usize,
}

impl<R: Real> ExchangeBuffer<R> {
    /// `rows` rows of `width` numbers, zero at first.
    pub(super) fn new(rows: usize, width: usize) -> Self {
        let stride = width.next_multiple_of(16) + GAP;
        Self {
            data: Buffer::zeroed(3 * rows * stride),
            stride,
        }
    }

    pub(super) fn exchange(&mut self) -> Exchange<'_, R> {
        let all = self.data.as_mut_slice();
        let (even, rest) = all.split_at_mut(all.len() / 3);
        let (odd, inner) = rest.split_at_mut(rest.len() / 2);
        Exchange {
            stride: self.stride,
            phases: [Shared::new(even), Shared::new(odd)],
            inner: Shared::new(inner),
        }
    }
}

/// Rows that all threads of a group read and of which each writes its own columns: two sets that alternate, so that
/// one barrier a stage is enough, and a third for the inner product of the reset-before GRU.
#[derive(Clone, Copy)]
pub(super) struct Exchange<'a, R> {
    /// From row to row.
    pub stride: usize,
    pub phases: [Shared<'a, R>; 2],
    pub inner: Shared<'a, R>,
}
