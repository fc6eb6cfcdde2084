//! The GPU forms: all steps of all members in one launch.
//!
//! | routine | where | a member is |
//! | --- | --- | --- |
//! | [`Routine::Cube`] | every device, `H` to 1024 | one cube, which reads the member's weights at every step |
//! | [`Routine::Cluster`] | NVIDIA, compute capability 9.0 and later, `H` to 1024 | a cluster of 8 cubes, which exchange the state; to `H` = 288 with the weights in registers |
//!
//! Members never wait for one another. [`choose`] takes the cluster wherever the device has clusters, and one cube elsewhere.

mod cluster;
mod cube;
mod launch;

pub use launch::{choose, missing, run};

use cubecl::server::Handle;

/// Buffers of a rollout in `f32`, all contiguous; see the table of the [contract](super).
#[derive(Debug, Clone)]
pub struct Buffers {
    /// `[E, 3H, I]`.
    pub w: Handle,
    /// `[E, 3H, H]`.
    pub u: Handle,
    /// `[E, 3H]`.
    pub bias: Handle,
    /// `[11, H + S]`.
    pub heads: Handle,
    /// `[E, H]`.
    pub h0: Handle,
    /// `[I]`.
    pub features: Handle,
    /// `[1]`.
    pub loss: Handle,
    /// `[E, R]`, written; see [`Outcome::from_rows`](super::Outcome::from_rows).
    pub rows: Handle,
}

/// Which kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Routine {
    /// One cube for each member.
    Cube,
    /// A cluster of cubes for each member.
    Cluster,
}

impl Routine {
    /// All of them.
    pub const ALL: [Routine; 2] = [Routine::Cube, Routine::Cluster];

    /// The name users know.
    pub fn name(self) -> &'static str {
        match self {
            Routine::Cube => "cube",
            Routine::Cluster => "cluster",
        }
    }
}
