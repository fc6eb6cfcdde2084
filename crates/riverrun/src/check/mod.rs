//! Checks of the operations on this machine: the random problems of [`riverrun_kernels`], run on tensors. Used by the tests and
//! by `riverrun verify`.

mod linear;

pub use linear::linear;
