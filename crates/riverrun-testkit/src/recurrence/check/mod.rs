//! Checks of the kernels on this machine: random problems, the naive computation that sets the tolerance, and the rule that
//! accepts a result. Used by the tests and by `riverrun verify`.

mod case;
#[cfg(feature = "gpu")]
pub mod device_oracle;
#[cfg(feature = "gpu")]
mod gpu;
pub mod naive;
mod tolerance;
#[cfg(feature = "gpu")]
mod wide;

pub use crate::check::{Comparison, Random};
pub use case::{Case, Options, Outcome};
pub use tolerance::compare;
