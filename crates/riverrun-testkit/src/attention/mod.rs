//! Attention and every gradient.

pub mod check;
pub mod oracle;
#[cfg(feature = "ops")]
mod rotary;
pub mod step;
mod verify;

pub use riverrun_kernels::attention::*;

use crate::{Operation, Storage};

/// The entry in the table.
pub const OPERATION: Operation = Operation {
    name: "attention",
    about: "Attention and every gradient",
    storages: &Storage::ALL,
    forms: verify::forms,
    check: verify::verify,
    weight: 3,
    shared: None,
    long: Some("attention of more than 130 queries or 200 keys"),
};
