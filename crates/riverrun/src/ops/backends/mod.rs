//! [`RecurrenceOps`](super::RecurrenceOps) on each backend.

pub(super) mod autodiff;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
pub(super) mod flex;
