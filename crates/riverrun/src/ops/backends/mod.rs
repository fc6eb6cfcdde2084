//! [`RecurrenceOps`](super::RecurrenceOps) on each backend.

pub(super) mod autodiff;
#[cfg(feature = "cube")]
pub(super) mod cube;
#[cfg(feature = "flex")]
pub(super) mod flex;
