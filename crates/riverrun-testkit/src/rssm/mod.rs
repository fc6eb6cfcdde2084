//! The recurrent state-space model.

pub mod oracle;
#[cfg(feature = "gpu")]
pub mod sequence;
#[cfg(feature = "ops")]
mod verify;

pub use riverrun_kernels::rssm::*;

#[cfg(feature = "ops")]
use crate::{Operation, Storage};

/// The entry in the table.
#[cfg(feature = "ops")]
pub const OPERATION: Operation = Operation {
    name: "rssm",
    about: "The recurrent state-space model",
    storages: &[Storage::F32, Storage::Bf16],
    forms: verify::forms,
    check: verify::verify,
    weight: 3,
    shared: None,
    long: None,
};
