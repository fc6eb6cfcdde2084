//! Products on the CPU: matrices packed once for many products, and register tiles over them.

pub(crate) mod columns;
mod few_rows;
pub(crate) mod packed;
mod product;
mod quantized;
pub(crate) mod tile;

pub use product::{Factor, Kernels, product};
pub use quantized::quantized_product;
