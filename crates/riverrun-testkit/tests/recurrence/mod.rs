//! The recurrence: the oracle against finite differences and PyTorch, the CPU kernels against the oracle.

mod assertions;
mod cpu_accuracy;
mod cpu_contract;
mod cpu_properties;
mod cpu_views;
#[cfg(feature = "gpu")]
mod gpu;
#[cfg(feature = "gpu")]
mod gpu_properties;
mod hvp;
mod oracle_finite_differences;
mod oracle_golden;
