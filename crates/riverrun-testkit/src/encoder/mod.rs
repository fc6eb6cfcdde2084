//! States of training runs as features.

pub mod check;
#[cfg(feature = "ops")]
mod verify;

pub use riverrun_kernels::encoder::*;

#[cfg(feature = "ops")]
use crate::{Operation, Storage};

/// The entry in the table.
#[cfg(feature = "ops")]
pub const OPERATION: Operation = Operation {
    name: "encoder",
    about: "States of training runs as features",
    storages: &[Storage::F32],
    forms: verify::forms,
    check: verify::verify,
    weight: 0,
    shared: None,
    long: None,
};
