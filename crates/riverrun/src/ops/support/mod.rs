//! Helpers shared by several operations; nothing here depends on an operation.

#[cfg(feature = "autodiff")]
pub(crate) mod autodiff;
pub(crate) mod checks;
#[cfg(feature = "cube")]
pub(crate) mod cube;
pub(crate) mod dtype;
#[cfg(feature = "flex")]
pub(crate) mod flex;
pub(crate) mod lengths;
pub(crate) mod map;
mod maybe;
pub(crate) mod members;
mod state;

#[cfg(feature = "cube")]
pub(crate) use maybe::MaybeMetadata;
pub use maybe::{Maybe, MaybeInt};
pub(crate) use state::last_state;
