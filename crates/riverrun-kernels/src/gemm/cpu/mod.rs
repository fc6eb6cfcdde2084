//! Products on the CPU: matrices packed once for many products, and register tiles over them.

pub(crate) mod columns;
mod factor;
mod few_rows;
pub(crate) mod packed;
mod product;
mod quantized;
pub(crate) mod tile;

pub use factor::Factor;
pub use product::{Kernels, product};
pub use quantized::quantized_product;
