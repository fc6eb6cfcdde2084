//! Attention on GPUs: one routine for every device, tiles in shared memory and plain units.
//!
//! A cube is a square of units and holds a square tile of scores, 4 by 4 of them a unit. Products go through shared memory a
//! chunk of channels at a time; the sums over keys (or queries) stay in registers. Forward and `dq` have a cube for a tile of
//! queries, `dk` and `dv` one for a tile of keys that goes through all query heads of its group.

mod backward;
mod bounds;
mod forward;
mod launch;
mod tile;

pub use launch::{Backward, Forward, Tuning, backward, forward};
