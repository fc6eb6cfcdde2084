//! Models against themselves, and against transformers.

mod blocks;
#[path = "../../../riverrun/tests/common/mod.rs"]
mod common;
#[allow(dead_code, reason = "golden tensors are of layers")]
#[cfg(feature = "store")]
#[path = "../../../riverrun/tests/common/golden.rs"]
mod golden;
mod gpt2;
mod griffin;
mod head_layers;
mod language_models;
mod layers;
#[cfg(feature = "store")]
mod lora;
#[path = "../../../riverrun/tests/common/padded.rs"]
mod padded;
#[path = "../../../riverrun/tests/common/parameters.rs"]
mod parameters;
#[cfg(feature = "store")]
mod published;
mod streams;
mod transformers;
mod world_models;
