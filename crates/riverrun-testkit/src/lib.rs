//! The table of riverrun's operations, and everything that checks them.
//!
//! One folder an operation: its random problems with the forms that run them ([`Case`]), its oracle in `f64`, the rule that
//! accepts a result, and its entry ([`Operation`]) in [`OPERATIONS`]. `riverrun verify`, the tests of the kernels on the CPU, on
//! software GPUs and on the simulated one, and Miri take operations from here.
//!
//! No part of the stable interface.

mod case;
mod failure;
#[cfg(feature = "ops")]
pub mod op;
pub mod operation;
mod row;
mod storage;
mod target;
mod tensors;

pub mod activation;
pub mod attention;
pub mod block_diagonal;
pub mod cell;
pub mod column_sums;
pub mod delta_step;
pub mod draw;
pub mod embedding;
pub mod encoder;
pub mod few_rows;
pub mod flat;
pub mod gemm;
pub mod log_decay;
pub mod loss;
pub mod matrix_state;
pub mod norm;
pub mod optimizer;
pub mod recurrence;
#[cfg(feature = "ops")]
pub mod refill;
pub mod rg_lru;
pub mod rollout;
pub mod rssm;
pub mod short_convolution;

pub use case::{Case, Verdict, judge};
pub use failure::Failure;
pub use operation::{OPERATIONS, Operation, Part, assert_right};
pub use row::{Report, Row};
pub use storage::Storage;
pub use target::Target;
pub use tensors::{Tensors, marks};

// The comparison of numbers with a reference, the generator, and the transfers to a GPU.
pub use riverrun_kernels::check::{self, *};
// The types of the kernels, which an operation's problems share.
#[cfg(feature = "gpu")]
pub use riverrun_kernels::gpu;
pub use riverrun_kernels::{CpuElement, Element, Error};
