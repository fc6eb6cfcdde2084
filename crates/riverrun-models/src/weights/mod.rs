//! Weights of published models.

mod gpt2;
mod griffin;
mod published;

pub use gpt2::gpt2_from_huggingface;
pub use griffin::griffin_from_huggingface;
pub use published::Published;
