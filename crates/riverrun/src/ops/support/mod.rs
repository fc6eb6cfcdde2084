//! What several operations share. Nothing here knows of an operation.

pub(crate) mod autodiff;
pub(crate) mod checks;
#[cfg(feature = "cube")]
pub(crate) mod cube;
#[cfg(feature = "flex")]
pub(crate) mod flex;
mod maybe;
mod state;

pub use maybe::Maybe;
#[cfg(feature = "cube")]
pub(crate) use maybe::MaybeMetadata;
pub(crate) use state::last_state;
