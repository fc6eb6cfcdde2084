//! The block-diagonal recurrence.

pub mod oracle;
#[cfg(feature = "ops")]
mod verify;

pub use riverrun_kernels::block_diagonal::*;

#[cfg(feature = "ops")]
use crate::{Operation, Storage};

/// The entry in the table.
#[cfg(feature = "ops")]
pub const OPERATION: Operation = Operation {
    name: "block-diagonal",
    about: "The block-diagonal recurrence",
    storages: &[Storage::F32, Storage::F64],
    forms: |_| vec!["block-diagonal"],
    check: verify::verify,
    weight: 1,
    shared: None,
    long: None,
};
