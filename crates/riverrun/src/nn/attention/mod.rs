//! Attention layers.

mod kept;
mod local;
mod multi_head;
mod place;
mod rotary;

pub use local::{LocalAttention, LocalAttentionConfig};
pub use multi_head::{AttentionState, MultiHeadAttention, MultiHeadAttentionConfig};
pub use place::{Place, Places};
pub use rotary::Rotary;
