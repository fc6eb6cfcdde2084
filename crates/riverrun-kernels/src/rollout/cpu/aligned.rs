//! A copy of recurrent weights that starts on a cache line.
//!
//! A step reads every weight once, at the speed of the cache. Where rows do not start on a line, each register that is loaded
//! lies in two of them, and a step takes up to a third longer. Large arrays seldom start on a line.

use crate::buffer::Buffer;

/// Bytes of a cache line, and of the widest register.
const LINE: usize = 64;
/// The fewest steps that are worth a copy.
const STEPS: usize = 8;
/// Weights of more bytes are not in a core's cache at the next step, so that their alignment matters less.
const CACHE: usize = 1 << 20;

/// The rows of three gates, one after another.
pub(super) struct AlignedRows(Buffer<f32>);

impl AlignedRows {
    /// Copies the rows of each gate, `hidden` numbers each; `None` where that would not save time.
    pub(super) fn new(gates: [&[f32]; 3], hidden: usize, steps: usize) -> Option<Self> {
        let length = gates[0].len();
        let bytes = 3 * length * size_of::<f32>();
        let in_lines = (hidden * size_of::<f32>()).is_multiple_of(LINE);
        let starts = gates
            .iter()
            .all(|rows| rows.as_ptr().addr().is_multiple_of(LINE));
        if !in_lines || starts || steps < STEPS || !(1..=CACHE).contains(&bytes) {
            return None;
        }
        let mut copy = Buffer::scratch(3 * length);
        for (to, from) in copy.as_mut_slice().chunks_exact_mut(length).zip(gates) {
            to.copy_from_slice(from);
        }
        Some(Self(copy))
    }

    pub(super) fn gate(&self, gate: usize) -> &[f32] {
        let all = self.0.as_slice();
        let length = all.len() / 3;
        &all[gate * length..(gate + 1) * length]
    }
}
