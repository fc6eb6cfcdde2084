//! On GPUs: a group of threads reads a row once, each thread with its own maximum and sum.
//!
//! Rows of any length, such as 50 257, lie across the vectors of the buffer: vectors that a row shares with its neighbours are
//! read whole, and the neighbours' elements are masked. Backward runs over the vectors of the buffer, whatever their rows, so
//! every element is read once and written once. Results are bit-equal from run to run.

mod kernels;
mod launch;

pub use launch::{Backward, Forward, Tuning, backward, forward};
