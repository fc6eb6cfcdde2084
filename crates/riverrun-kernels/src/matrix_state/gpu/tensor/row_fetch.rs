//! The queries, keys and logarithms of a thread's two steps on their way to shared memory.

use cubecl::prelude::*;

use super::Form;
use crate::gpu::tensor::*;

/// What waits for a thread in shared memory: of each of two groups of channels, queries, keys and logarithms of two steps, and what
/// reads for the erase where that is not the key.
pub(super) fn waiting_vectors(form: Form) -> usize {
    if form.separate() { 8 } else { 6 }
}

/// Where the thread's rows are.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Own {
    pub q: u64,
    pub k: u64,
    pub g: u64,
    pub erase: u64,
    /// The thread's first number of the first row, and the distance of the rows; of queries, then of logarithms.
    pub queries: usize,
    pub query_rows: usize,
    pub logs: usize,
    pub log_rows: usize,
    /// Rows that are there, 0 to 2.
    pub there: u32,
}

/// Begins to copy 32 channels of the thread's two rows, 8 of each.
#[cube]
pub(super) fn fetch(at: u32, own: &Own, n: usize, #[comptime] given: bool, #[comptime] form: Form) {
    #[unroll]
    for half in 0..2usize {
        let there = own.there > comptime!(half as u32);
        let bytes = select(there, 16u32, 0u32);
        let row = select(there, half, 0usize);
        let queries = u64::cast_from(own.queries + row * own.query_rows + n * 32) * 2u64;
        let logs = u64::cast_from(own.logs + row * own.log_rows + n * 32) * 2u64;
        let keys = if comptime!(form.separate() && !given) {
            logs
        } else {
            queries
        };
        copy_16(at + comptime!(half as u32 * 2048), own.q + queries, bytes);
        copy_16(
            at + comptime!((2 + half) as u32 * 2048),
            own.k + keys,
            bytes,
        );
        copy_16(
            at + comptime!((4 + half) as u32 * 2048),
            own.g + logs,
            bytes,
        );
        if comptime!(form.separate()) {
            copy_16(
                at + comptime!((6 + half) as u32 * 2048),
                own.erase + logs,
                bytes,
            );
        }
    }
}
