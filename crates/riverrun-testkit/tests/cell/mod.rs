//! The cells: the oracle against PyTorch and finite differences, the CPU form against the oracle.

mod accuracy;
mod contract;
mod empty;
#[cfg(feature = "gpu")]
mod gpu;
mod lengths;
mod oracle;
mod packed;
mod properties;
#[cfg(feature = "gpu")]
mod step;
