//! Attention and its layers.

mod layers;
mod operation;
#[cfg(feature = "store")]
mod pytorch;
