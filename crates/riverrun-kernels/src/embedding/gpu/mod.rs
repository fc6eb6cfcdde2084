//! On GPUs: rows gathered by one launch; the gradient by eight, without float atomics and with nothing read back, so that
//! they can be recorded. Their configuration depends on the shape alone.
//!
//! 1. **Count.** Tokens are taken in blocks. Each token counts the equal tokens before it in its block, by comparing it with
//!    all of them in shared memory, and the last of the equal tokens writes their number to `counts[block, row]` (cleared
//!    before). Invalid tokens count in an extra row after the last.
//! 2. **Scan.** The counts of a row become, block by block, the number of equal tokens before the block; the totals of the rows
//!    become the starts of their segments: within 256 rows at a time, then across those groups.
//! 3. **Place.** Token `n` goes to `start + before the block + before in the block`: a stable counting sort.
//! 4. **Sum.** The sorted positions are divided into pieces of 32. A segment inside a piece is summed and written. One that
//!    begins or ends elsewhere leaves a partial sum in `f32`: at most two a piece, for its first segment and its last. 32
//!    pieces that lie within one segment are summed once more.
//! 5. **Finish.** Rows whose segments span pieces add their partial sums in order; rows without tokens are 0.

mod count;
mod launch;
mod sum;

pub use launch::{Backward, Forward, backward, forward};

/// Threads of a cube.
const UNITS: usize = 256;

/// Threads that share a row, and sorted positions of a piece.
const LANES: usize = 32;

/// Rows or pieces that a cube works on at a time.
const PLANES: usize = UNITS / LANES;

/// Pieces of a group.
const GROUP: usize = 32;
