//! The GPU forms: the whole sequence in one launch, on NVIDIA's tensor cores; a single step in one launch, on any GPU.
//!
//! | file | contents |
//! | --- | --- |
//! | `weights`, `product` | the weights that a cube holds, and their product with the state |
//! | `gates` | the cells' formulas |
//! | `forward`, `backward` | the passes |
//! | `shared_depth` | a product whose depth the cubes of a cluster share |
//! | `kernels`, `buffers` | the kernels and their arguments |
//! | `plan`, `estimate`, `choose`, `pass`, `launch` | from a problem to launches; `choose` has the rule for their sizes |
//! | `step` | a single step |
//!
//! How cubes that run at once read each other's results, and why one such launch runs at a time on a device: see `gpu::exchange` and
//! `gpu::lock`.
//!
//! **Shared memory.** The sequence takes what the card gives a cube by opt-in, 64 KiB on a T1000 to 227 KiB on an H200: every byte
//! of weights held there is one that no step reads again. A step, a rollout and an encoder stay under 48 KiB.

mod args;
mod backward;
mod buffers;
mod choose;
mod estimate;
mod forward;
mod gates;
mod kernels;
mod launch;
mod pass;
mod plan;
mod product;
mod shared_depth;
mod step;
mod tuning;
mod weights;

#[cfg(feature = "check")]
pub use crate::gpu::lock::abandon_lock;
pub use args::{Backward, Forward};
pub use launch::{backward, forward};
#[cfg(feature = "check")]
pub(crate) use launch::{backward_with, forward_with};
pub use step::{Step, missing as step_missing, step};
#[cfg(feature = "check")]
pub use tuning::Tuning;

use cubecl::client::Client;

use super::Problem;
use crate::gpu::Dtype;

/// The reason why the persistent routine cannot run a problem on this device, if it cannot.
pub fn missing(client: &Client, problem: &Problem, dtype: Dtype) -> Option<String> {
    plan::missing(client, problem, dtype)
}

/// The sizes that the rule chooses for a pass, if it fits on the device.
#[cfg(feature = "check")]
pub fn chosen(client: &Client, problem: &Problem, dtype: Dtype, backward: bool) -> Option<Tuning> {
    choose::choose(client, problem, dtype, backward).map(|partition| partition.tuning())
}
