//! Problems with their data, running them, and the rule by which a result is accepted.

mod case;
mod isolation;
mod tolerance;

pub use case::{Case, Options};

/// All that forward and backward give.
pub type Outcome = crate::Tensors;
