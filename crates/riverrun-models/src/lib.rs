//! Models made of [riverrun]'s recurrent layers and of attention.
//!
//! - [`LanguageModel`]: any recurrent layer in residual blocks; [`Griffin`]; [`Gpt2`]; [`Decoder`] and [`Rwkv`], the models of
//!   published weights; [`AnyLanguageModel`], chosen by name.
//! - [`WorldModel`]: a recurrent state-space model of vector observations.
//! - [`LoraConfig`]: low-rank factors that learn beside weights that stay as they are.
//! - [`ModelSize`]: parameters and memory of a model before it is built.
//! - `weights`: published weights (feature `store`).
//!
//! Features are those of `riverrun`.
//!
//! ```
//! # #[cfg(feature = "flex")] {
//! use burn::tensor::{Device, Int, Tensor};
//! use riverrun::Sequence;
//! use riverrun_models::{LanguageModelConfig, RecurrentKind};
//!
//! let device = Device::flex();
//! let config = LanguageModelConfig::new(256, 64, 2).with_cell(RecurrentKind::MinLstm);
//! let model = config.init(&device);
//! let tokens = Tensor::<2, Int>::zeros([1, 10], &device);
//! let (logits, state) = model.forward(tokens, Sequence::new());
//! assert_eq!(logits.dims(), [1, 10, 256]);
//! // One token more, from there.
//! let (logits, _state) = model.step(Tensor::zeros([1], &device), Some(state));
//! assert_eq!(logits.dims(), [1, 256]);
//! # }
//! ```

mod any_language_model;
mod any_recurrent;
mod attention_sizes;
mod block;
mod caches;
mod decoder;
mod few_steps;
mod forward;
mod gpt2;
mod griffin;
mod head;
mod head_layers;
mod language_model;
mod language_model_kind;
mod lora;
mod recurrent_state;
mod rwkv;
mod size;
mod state_parts;
#[cfg(feature = "store")]
pub mod weights;
mod world_model;

pub use any_language_model::{AnyLanguageModel, AnyLanguageModelConfig, AnyLmState};
pub use any_recurrent::{AnyRecurrent, RecurrentKind};
pub use block::{Block, BlockConfig};
pub use decoder::{Decoder, DecoderBlock, DecoderConfig, GatedMlp, MixerConfig};
pub use gpt2::{Gpt2, Gpt2Block, Gpt2Config, Gpt2State};
pub use griffin::{
    Griffin, GriffinBlock, GriffinBlockState, GriffinConfig, GriffinRecurrence, GriffinState,
    TemporalMixing,
};
pub use head_layers::{AnyHeadLayer, HeadKind, HeadSizes};
pub use language_model::{LanguageModel, LanguageModelConfig, LmState};
pub use language_model_kind::LanguageModelKind;
pub use lora::{LoraConfig, adapted};
pub use recurrent_state::{RecurrentState, VectorState};
pub use rwkv::{Rwkv, RwkvBlock, RwkvBlockState, RwkvConfig, RwkvState};
pub use size::ModelSize;
pub use state_parts::StateParts;
pub use world_model::{WorldModel, WorldModelConfig, WorldModelLoss};
