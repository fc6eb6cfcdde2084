//! A C interface to the CPU kernels: recurrences and cells on the caller's memory.
//!
//! `include/riverrun.h` is generated from this crate by cbindgen; a test holds the two together, and another compiles and runs
//! `examples/cells.c`. A function returns a [`Status`]; [`riverrun_error`] says what was wrong.

mod array;
mod call;
mod cell;
mod scan;

pub use call::{Dtype, Status, riverrun_error, riverrun_version};
pub use cell::{
    Cell, CellArrays, CellGradients, riverrun_cell, riverrun_cell_backward, riverrun_cell_saved,
};
pub use scan::{Scan, riverrun_scan, riverrun_scan_backward};
