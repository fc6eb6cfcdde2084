//! [`RecurrenceOps`](super::RecurrenceOps) on each backend.

mod autodiff;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;
