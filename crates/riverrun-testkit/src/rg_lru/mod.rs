//! The gates of the RG-LRU.

pub mod oracle;
#[cfg(feature = "ops")]
pub mod verify;

pub use riverrun_kernels::rg_lru::*;
