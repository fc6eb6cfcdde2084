//! The linear recurrence: every gate and routine.

pub mod check;
pub mod oracle;
#[cfg(feature = "ops")]
pub mod recompute;
#[cfg(feature = "ops")]
pub mod second_derivative;
mod verify;

pub use riverrun_kernels::recurrence::*;

use crate::{Operation, Storage};

/// The entry in the table.
pub const OPERATION: Operation = Operation {
    name: "recurrence",
    about: "Linear recurrences: every gate and routine, forward and every gradient",
    storages: &Storage::ALL,
    forms: verify::forms,
    check: verify::verify,
    weight: 2,
    shared: crate::storage::HALVES,
    long: Some("recurrences of more than 4096 steps, 256 channels or 2^31 elements"),
};
