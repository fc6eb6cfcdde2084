//! Models made of recurrent layers.

mod block;
mod cell;
mod language_model;

pub use block::{Block, BlockConfig};
pub use cell::{Cell, CellKind, CellState};
pub use language_model::{LanguageModel, LanguageModelConfig, LmState};
