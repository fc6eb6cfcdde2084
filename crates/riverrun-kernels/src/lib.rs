//! Recurrent kernels for CPUs and GPUs, each tested against a reference in `f64`.
//!
//! One folder an operation. Inside it stand, side by side, the contract (`mod.rs`), the reference, the CPU form and the GPU
//! forms. This crate does not depend on Burn: CPU kernels take slices, GPU kernels take CubeCL handles.

pub mod activation;
pub mod adamw;
pub mod attention;
pub mod block_diagonal;
mod buffer;
pub mod cell;
#[cfg(feature = "check")]
pub mod check;
#[cfg(feature = "gpu")]
pub mod column_sums;
mod cpu_element;
pub mod cross_entropy;
pub mod delta_step;
pub mod draw;
mod element;
pub mod embedding;
pub mod encoder;
mod error;
pub mod few_rows;
pub mod flat;
pub mod gemm;
#[cfg(feature = "gpu")]
pub mod gpu;
pub mod log_decay;
pub mod matrix_state;
pub mod norm;
pub mod random;
pub mod recurrence;
pub mod rg_lru;
pub mod rollout;
pub mod rotary;
pub mod rows;
pub mod rssm;
pub mod short_convolution;
mod simd;
mod threads;
#[cfg(feature = "gpu")]
pub mod tuned;

pub use cpu_element::CpuElement;
pub use element::Element;
pub use error::Error;
#[doc(hidden)]
pub use error::expect_length;
#[doc(hidden)]
pub use simd::real::Real;
pub use threads::zeros;
