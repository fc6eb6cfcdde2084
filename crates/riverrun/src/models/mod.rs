//! Models made of recurrent layers.

mod any_recurrent;
mod block;
mod language_model;
mod size;
mod world_model;

pub use any_recurrent::{AnyRecurrent, RecurrentKind, RecurrentState};
pub use block::{Block, BlockConfig};
pub use language_model::{LanguageModel, LanguageModelConfig, LmState};
pub use size::ModelSize;
pub use world_model::{WorldModel, WorldModelConfig, WorldModelLoss};
