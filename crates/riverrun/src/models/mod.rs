//! Models made of recurrent layers and of attention.

mod any_language_model;
mod any_recurrent;
mod attention_sizes;
mod block;
mod forward;
mod gpt2;
mod griffin;
mod head;
mod language_model;
mod language_model_kind;
mod size;
mod world_model;

pub use any_language_model::{AnyLanguageModel, AnyLanguageModelConfig, AnyLmState};
pub use any_recurrent::{AnyRecurrent, RecurrentKind, RecurrentState};
pub use block::{Block, BlockConfig};
pub use gpt2::{Gpt2, Gpt2Block, Gpt2Config, Gpt2State};
pub use griffin::{
    Griffin, GriffinBlock, GriffinBlockState, GriffinConfig, GriffinRecurrence, GriffinState,
    TemporalMixing,
};
pub use language_model::{LanguageModel, LanguageModelConfig, LmState};
pub use language_model_kind::LanguageModelKind;
pub use size::ModelSize;
pub use world_model::{WorldModel, WorldModelConfig, WorldModelLoss};
