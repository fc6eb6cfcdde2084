//! Ensemble rollouts: the oracle's formulas by hand, CPU and GPU kernels against the oracle. The GPU part runs on a software
//! Vulkan driver too.

mod contract;
mod cpu;
#[cfg(feature = "gpu")]
mod gpu;
mod metrics;
