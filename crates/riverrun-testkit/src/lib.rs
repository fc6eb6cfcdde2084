//! The table of riverrun's operations, and everything that checks them.
//!
//! One folder an operation: its random problems with the forms that run them ([`Case`]), its oracle in `f64`, the rule that
//! accepts a result, and its entry ([`Operation`]) in [`OPERATIONS`]. `riverrun verify`, the tests of the kernels on the CPU, on
//! software GPUs and on the simulated one, and Miri go through this table; nothing else lists the operations.
//!
//! No part of the stable interface.

mod case;
mod failure;
mod operation;
mod row;
mod storage;
mod target;
mod tensors;

pub mod embedding;
pub mod flat;
pub mod loss;
pub mod norm;
pub mod optimizer;

pub use case::{Case, Verdict, judge};
pub use failure::Failure;
pub use operation::{OPERATIONS, Operation, Part, assert_right};
pub use row::{Report, Row};
pub use storage::Storage;
pub use target::Target;
pub use tensors::Tensors;

// The comparison of numbers with a reference, the generator and the transfers to a GPU.
pub use riverrun_kernels::check::*;
