//! Checks of the cells on this machine: random problems, the naive computation that sets the tolerance, and the rule that
//! accepts a result. Used by the tests and by `riverrun verify`.

mod case;
#[cfg(feature = "gpu")]
mod gpu;
mod heads;
pub mod naive;
#[cfg(feature = "gpu")]
mod step;
mod tolerance;

pub use crate::check::Random;
pub use case::{Case, Options, Results, routines};
#[cfg(feature = "gpu")]
pub use step::StepCase;
pub use tolerance::compare;
