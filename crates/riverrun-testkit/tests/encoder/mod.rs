//! The state encoder: every feature by hand, the incremental form, the flat form and the GPU's against the formulas.

mod by_hand;
mod contract;
#[cfg(feature = "gpu")]
mod gpu;
