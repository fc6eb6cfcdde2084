//! GRU, LSTM and Elman cells.

#[cfg(feature = "ops")]
pub mod layer;
mod verify;

pub use riverrun_kernels::cell::*;

use crate::{Operation, Storage};

/// The entry in the table.
pub const OPERATION: Operation = Operation {
    name: "cell",
    about: "GRU, LSTM and Elman cells: kernels and layers",
    storages: &[Storage::F32, Storage::F16, Storage::Bf16],
    forms: verify::forms,
    check: verify::verify,
    weight: 3,
    shared: crate::storage::HALVES,
    long: Some("cells of more than 40 steps or 128 hidden units"),
};
