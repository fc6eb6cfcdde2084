//! Attention layers and the models with attention: against themselves, and against PyTorch and transformers.

#[path = "../common/mod.rs"]
mod common;
mod gates;
#[cfg(feature = "store")]
#[path = "../golden/mod.rs"]
mod golden;
mod gpt2;
mod griffin;
mod layers;
mod streams;
#[cfg(feature = "store")]
mod transformers;
