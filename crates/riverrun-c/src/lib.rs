//! A C interface to the kernels: recurrences and cells on the caller's memory, on the CPU and, with the feature `cuda`, on a
//! CUDA stream.
//!
//! `include/riverrun.h` is generated from this crate by cbindgen; a test holds the two together, and another compiles and runs
//! `examples/cells.c`. A function returns a [`Status`]; [`riverrun_error`] says what was wrong.

mod array;
mod call;
mod cell;
#[cfg(feature = "cuda")]
mod cuda;
mod scan;

pub use call::{Dtype, Status, riverrun_error, riverrun_version};
pub use cell::{
    Cell, CellArrays, CellGradients, riverrun_cell, riverrun_cell_backward, riverrun_cell_saved,
};
#[cfg(feature = "cuda")]
pub use cuda::{
    Cuda, CudaCellArrays, CudaCellGradients, riverrun_cuda_cell, riverrun_cuda_cell_backward,
    riverrun_cuda_fault, riverrun_cuda_scan, riverrun_cuda_scan_backward,
};
pub use scan::{Scan, riverrun_scan, riverrun_scan_backward};
