//! A single step, input product included, in one launch on any GPU.
//!
//! The new state of a hidden unit needs the whole state before, which is an input: so cubes need not wait for each other. A
//! group of 32 threads takes two neighbouring hidden units and a few sequences; its threads divide the depth of both
//! products between them, add up their parts, and run the cell. The GRU with the reset gate before the product takes two
//! launches: `U_n (r ∘ h)` needs the reset gates of all hidden units.
//!
//! The weights are read once for every few sequences, so a step of one sequence takes as long as reading them. Many steps that
//! are known in advance run faster in one launch for all of them, where the weights stay in registers.

mod kernel;
mod launch;

use cubecl::server::Handle;

pub use launch::{missing, step};

/// Buffers of a step, all contiguous and of the storage type.
#[derive(Debug, Clone)]
pub struct Step {
    /// `[B, I]`: the input.
    pub x: Handle,
    /// `[G·H, I]`: the input weights.
    pub w: Handle,
    /// `[G·H]`: the input bias.
    pub bias_ih: Option<Handle>,
    /// `[G·H, H/N]`: the recurrent weights.
    pub u: Handle,
    /// `[G·H]`: the recurrent bias.
    pub bias_hh: Option<Handle>,
    /// `[B, H]`: the state before.
    pub h: Handle,
    /// `[B, H]`, LSTM only: the cell state before.
    pub c: Option<Handle>,
    /// `[B, H]`, written: the state after. Not the same buffer as `h`.
    pub h_next: Handle,
    /// `[B, H]`, LSTM only, written: the cell state after. Not the same buffer as `c`.
    pub c_next: Option<Handle>,
}
