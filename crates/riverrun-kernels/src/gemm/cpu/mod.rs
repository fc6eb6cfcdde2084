//! Products on the CPU: matrices packed once for many products, and register tiles over them.

pub(crate) mod columns;
pub(crate) mod packed;
pub(crate) mod tile;
