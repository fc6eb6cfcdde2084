//! What passes between the threads that share a sequence, and from one step to the next.

use super::buffer::Buffer;
use super::lanes::Number;

/// Numbers between the end of a row and the next, so that the rows of a tile do not compete for the same places in
/// the cache.
const GAP: usize = 16;

/// Rows that all threads of a team read and of which each writes its own columns: two sets that take turns, so that
/// one meeting a stage is enough, and a third for the inner product of the reset-before GRU.
pub(super) struct Exchange<R> {
    /// From row to row.
    pub stride: usize,
    pub turns: [*mut R; 2],
    pub inner: *mut R,
    _rows: Buffer<R>,
}

// SAFETY: threads write their own columns and read those of others only after a meeting.
unsafe impl<R: Sync> Sync for Exchange<R> {}

impl<R: Number> Exchange<R> {
    /// `rows` rows of `width` numbers, zero at first.
    pub(super) fn new(rows: usize, width: usize) -> Self {
        let stride = width.next_multiple_of(16) + GAP;
        let mut buffer = Buffer::zeroed(3 * rows * stride);
        let first: *mut R = buffer.as_mut_ptr();
        let [a, b, c] = [0, 1, 2].map(|index| first.wrapping_add(index * rows * stride));
        Self {
            stride,
            turns: [a, b],
            inner: c,
            _rows: buffer,
        }
    }
}
