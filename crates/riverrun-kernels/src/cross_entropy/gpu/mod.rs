//! On GPUs: a group of threads goes through a row once, each thread with a maximum and a sum of its own.
//!
//! Rows of any length, such as 50 257, lie across the vectors of the buffer: vectors that a row shares with its
//! neighbours are read whole, and what belongs to others is left out. Backward goes through the vectors of the buffer
//! without regard to rows, so every element is read once and written once. Results are bit-equal from run to run.

mod kernels;
mod launch;

pub use launch::{Backward, Forward, Tuning, backward, forward};
