//! GELU, alone and as a gate.

pub mod check;
pub mod oracle;
#[cfg(feature = "ops")]
mod verify;

pub use riverrun_kernels::gelu::*;

#[cfg(feature = "ops")]
use crate::{Operation, Storage};

/// The entry in the table.
#[cfg(feature = "ops")]
pub const OPERATION: Operation = Operation {
    name: "gelu",
    about: "GELU",
    storages: &Storage::ALL,
    forms: |_| vec!["gelu", "geglu"],
    check: verify::verify,
    weight: 0,
    shared: None,
    long: None,
};
