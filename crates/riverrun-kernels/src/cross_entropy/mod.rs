//! The cross-entropy of logits `[rows, V]` with one target a row, averaged over the rows.
//!
//! `loss = mean(lse_n - x_n[target_n])`, `lse_n = log Σ_v exp x_n[v]`, over the rows that count: a negative target leaves its
//! row out. The loss is NaN if no row counts, and if a target is `V` or more, so that such an error shows.
//!
//! Backward, `d_x_n[v] = (exp(x_n[v] - lse_n) - [v = target_n]) d_loss / count`, and 0 in a row that does not count. The
//! forward pass reads the logits once and saves `lse` and `1 / count`; neither pass copies the logits to a wider type.

pub mod cpu;
#[cfg(feature = "gpu")]
pub mod gpu;

/// Bytes that a pass over `[rows, V]` reads and writes, each tensor once, with logits of `element` bytes and targets
/// and numbers of a row of 4.
pub fn bytes(shape: [usize; 2], backward: bool, element: usize) -> usize {
    let [rows, vocab] = shape;
    let streams = if backward { 2 } else { 1 };
    streams * rows * vocab * element + 2 * rows * 4
}
