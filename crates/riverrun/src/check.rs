//! What only the tests of this crate and `riverrun verify` reach.

/// The backend extensions under the functions on tensors, for tests of forms that no tensor reaches.
pub mod backend {
    pub use crate::ops::cell::backend::{
        CellInputs, CellOps, CellOutputGrads, CellSpec, StepInputs,
    };
    pub use crate::ops::linear::backend::LinearOps;
    pub use crate::ops::support::{Maybe, MaybeInt};
}

pub use crate::ops::norm::{NormKind, NormSpec, add_norm, norm};
