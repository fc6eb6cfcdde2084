//! The cells: the oracle against PyTorch and finite differences, the CPU form against the oracle.

mod accuracy;
mod contract;
#[cfg(feature = "gpu")]
#[path = "../device/mod.rs"]
mod device;
mod empty;
#[cfg(feature = "gpu")]
mod gpu;
mod lengths;
mod oracle;
mod packed;
mod properties;
#[cfg(feature = "gpu")]
mod step;
