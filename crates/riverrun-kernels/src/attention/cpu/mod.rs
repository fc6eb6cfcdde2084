//! Attention on the CPU.
//!
//! A task is `ROWS` queries of a head against all blocks of `COLUMNS` keys that they meet; backward, a head, or `ROWS` of its
//! queries or keys. Products are the register tiles of [`gemm`](crate::gemm); the other side is packed for them once, by block and
//! head. A task's scores, sums and the two blocks it works on fit into the second-level cache for `D` up to 256. A few queries, as
//! a step with a cache of keys has, read keys and values where they lie: packing them would take longer than the products.

mod backward;
mod blocks;
mod few;
mod forward;
mod scores;

pub use backward::{Backward, backward};
pub use forward::{Forward, forward};

use super::Problem;
use crate::element::compiled_here;
use backward::attend_back;
use forward::attend;

compiled_here! {
    Kernels<E> {
        fn attend(problem: &Problem, args: Forward<'_, E>) -> () = attend;
        fn attend_back(problem: &Problem, args: Backward<'_, E>) -> () = attend_back;
    }
}

/// Rows of a task.
const ROWS: usize = 64;

/// Columns of a block: whole vectors and whole panels for registers of 4 to 16 numbers.
const COLUMNS: usize = 96;

/// A task: a head of a sequence, and the first of its rows.
#[derive(Clone, Copy)]
struct Task {
    sequence: usize,
    head: usize,
    first: usize,
}

/// The tasks of `heads` heads of `batch` sequences of `length` rows each.
fn tasks(batch: usize, heads: usize, length: usize) -> Vec<Task> {
    let mut tasks = Vec::with_capacity(batch * heads * length.div_ceil(ROWS));
    // Last rows first: under a causal mask they see the most.
    for first in (0..length).step_by(ROWS).rev() {
        for sequence in 0..batch {
            tasks.extend((0..heads).map(|head| Task {
                sequence,
                head,
                first,
            }));
        }
    }
    tasks
}
