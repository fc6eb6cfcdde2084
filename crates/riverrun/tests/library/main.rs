//! Operations, layers and weights, on the CPU and on a GPU where there is one.

mod attention;
mod block_diagonal;
mod cells;
#[path = "../common/mod.rs"]
mod common;
mod contract;
mod dropout;
mod empty;
mod gates;
#[path = "../common/golden.rs"]
mod golden;
mod layers;
mod linear;
mod ops;
#[path = "../common/padded.rs"]
mod padded;
mod recompute;
#[cfg(feature = "flex")]
mod rollout;
mod rows;
#[cfg(feature = "flex")]
mod rssm;
