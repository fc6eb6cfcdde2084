//! The short causal convolution with its state.

#[cfg(feature = "ops")]
mod verify;

pub use riverrun_kernels::short_convolution::*;

#[cfg(feature = "ops")]
use crate::{Operation, Storage};

/// The entry in the table.
#[cfg(feature = "ops")]
pub const OPERATION: Operation = Operation {
    name: "conv",
    about: "The short causal convolution with its state",
    storages: &Storage::ALL,
    forms: |_| vec!["convolution", "rg-lru gates"],
    check: |part, table| match part.form {
        "convolution" => verify::verify(part, table),
        _ => crate::rg_lru::verify::verify(part, table),
    },
    weight: 1,
    shared: None,
    long: None,
};
