//! Attention on GPUs: tiles in shared memory, and plain units on every device or tensor cores where there are ([`tensor_cores`]).
//!
//! With plain units a cube is a square of units and holds a square tile of scores, 4 by 4 of them a unit. Products go through
//! shared memory a chunk of channels at a time; the sums over keys (or queries) stay in registers. Forward and `dq` have a cube
//! for a tile of queries, `dk` and `dv` one for a tile of keys that goes through all query heads of its group.

mod args;
mod backward;
mod bounds;
mod forward;
mod launch;
mod plan;
mod score;
mod step;
mod tensor;
mod tile;

pub use args::{Backward, Forward};
pub use launch::{backward, forward};
pub use plan::Tuning;
pub use step::{Step, step};
pub use tensor::tensor_cores;
