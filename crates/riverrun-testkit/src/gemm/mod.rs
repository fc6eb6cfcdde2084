//! Matrix products, linear layers and MLPs.

pub mod check;
#[cfg(feature = "ops")]
pub mod layer;
pub mod oracle;
#[cfg(feature = "ops")]
mod verify;

pub use riverrun_kernels::gemm::*;

#[cfg(feature = "ops")]
use crate::{Operation, Storage};

/// The entry in the table.
#[cfg(feature = "ops")]
pub const OPERATION: Operation = Operation {
    name: "linear",
    about: "Linear layers, MLPs and the vendor's matmuls",
    storages: &Storage::ALL,
    forms: verify::forms,
    check: verify::verify,
    weight: 2,
    shared: None,
    long: Some("linear layers of more than 128 rows; on a GPU, Burn's own matmuls"),
};
