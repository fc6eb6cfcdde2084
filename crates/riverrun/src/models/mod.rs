//! Models made of recurrent layers.

mod any_recurrent;
mod block;
mod griffin;
mod language_model;
mod size;
mod world_model;

pub use any_recurrent::{AnyRecurrent, RecurrentKind, RecurrentState};
pub use block::{Block, BlockConfig};
pub use griffin::{
    Griffin, GriffinBlock, GriffinBlockState, GriffinConfig, GriffinRecurrence, GriffinState,
    TemporalMixing,
};
pub use language_model::{LanguageModel, LanguageModelConfig, LmState};
pub use size::ModelSize;
pub use world_model::{WorldModel, WorldModelConfig, WorldModelLoss};
