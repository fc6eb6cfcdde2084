//! What `riverrun-models` shares with the layers; no part of the interface.

pub use crate::nn::cell_stack::{flat, stacked};
pub use crate::nn::linear::{apply, beside};
pub use crate::nn::matrices::{Matrix, matrices};
pub use crate::ops::few_rows::{FewRows, takes_few_rows};
pub use crate::ops::support::checks::{fits, lengths};
pub use crate::ops::support::lengths::{padding, without_padding};
#[cfg(feature = "store")]
pub use crate::weights::pytorch::reader::{Reader, Stored};
#[cfg(feature = "store")]
pub use crate::weights::pytorch::source::{Source, put, transposed};
