//! Checks of the operations on this machine: the random problems of [`riverrun_kernels`], run on tensors. Used by the tests and
//! by `riverrun verify`.

mod linear;

pub use linear::{blocks, linear};

/// The backend extensions under the functions on tensors, for tests of forms that no tensor reaches.
pub mod backend {
    pub use crate::ops::cell::backend::{
        CellInputs, CellOps, CellOutputGrads, CellSpec, StepInputs,
    };
    pub use crate::ops::linear::backend::LinearOps;
    pub use crate::ops::support::{Maybe, MaybeInt};
}
