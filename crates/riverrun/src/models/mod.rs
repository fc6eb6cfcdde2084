//! Models made of recurrent layers.

mod block;
mod cell;
mod language_model;
mod size;

pub use block::{Block, BlockConfig};
pub use cell::{Cell, CellKind, CellState};
pub use language_model::{LanguageModel, LanguageModelConfig, LmState};
pub use size::ModelSize;
