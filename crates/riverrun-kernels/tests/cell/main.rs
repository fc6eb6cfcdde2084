//! The cells: the oracle against PyTorch and finite differences, the CPU form against the oracle.

mod accuracy;
mod case;
mod contract;
mod naive;
mod oracle;
mod packed;
mod properties;
