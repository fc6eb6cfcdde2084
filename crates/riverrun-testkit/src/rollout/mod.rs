//! Rollouts of ensembles.

pub mod check;
pub mod oracle;
mod verify;

pub use riverrun_kernels::rollout::*;

use crate::{Operation, Storage};

/// The entry in the table.
pub const OPERATION: Operation = Operation {
    name: "rollout",
    about: "Rollouts of ensembles",
    storages: &[Storage::F32],
    forms: verify::forms,
    check: verify::verify,
    weight: 2,
    shared: None,
    long: Some("rollouts of more than 5 members or 100 steps"),
};
