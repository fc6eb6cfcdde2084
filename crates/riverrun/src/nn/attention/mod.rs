//! Attention layers.

mod kept;
mod local;
mod multi_head;
mod rotary;

pub use local::{LocalAttention, LocalAttentionConfig};
pub use multi_head::{AttentionState, MultiHeadAttention, MultiHeadAttentionConfig};
pub use rotary::{Rotary, Turn};
