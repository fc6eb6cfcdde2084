//! Recurrent layers: configuration, module and state, one file each.
//!
//! Every layer implements [`Recurrent`], so stacks, models and training loops are written once. A layer holds no state: the
//! caller passes it in and gets the next one back.

pub(crate) mod activation;
pub(crate) mod attention;
mod block_diagonal_rnn;
mod cell_layer;
pub(crate) mod cell_stack;
mod cell_stream;
mod gated;
mod gated_rnn;
mod gru;
mod layer_norm;
pub(crate) mod linear;
mod linear_rnn;
mod lstm;
pub(crate) mod matrices;
mod matrix_state;
mod min_gru;
mod min_lstm;
pub mod quantized;
mod recurrent;
mod rg_lru;
mod rms_norm;
mod rnn;
mod rssm;
pub(crate) mod size;
mod slstm;
mod stack_layer;

#[cfg(feature = "store")]
pub(crate) use cell_layer::like;

use crate::Sequence;

pub use attention::{
    AttentionState, LocalAttention, LocalAttentionConfig, MultiHeadAttention,
    MultiHeadAttentionConfig, Rotary,
};
pub use block_diagonal_rnn::{BlockDiagonalRnn, BlockDiagonalRnnConfig};
pub use cell_layer::CellLayer;
#[doc(hidden)]
pub use cell_stack::CellStack;
pub use cell_stream::CellStream;
pub use gated_rnn::{GatedRnn, GatedRnnConfig};
pub use gru::{Gru, GruConfig};
pub use layer_norm::{LayerNorm, LayerNormConfig};
pub(crate) use linear::{apply, beside};
pub use linear::{linear, mlp};
pub use linear_rnn::{LinearRnn, LinearRnnConfig};
pub use lstm::{Lstm, LstmConfig, LstmState};
pub use matrix_state::{
    DeltaNet, DeltaNetConfig, GatedDeltaNet, GatedDeltaNetConfig, Gla, GlaConfig, HeadDecay, Hgrn2,
    Hgrn2Config, Kda, KdaConfig, LowRank, MLstm, MLstmConfig, Mamba2, Mamba2Config,
    MatrixLayerState, RetNet, RetNetConfig, Rwkv6, Rwkv6Config, Rwkv7, Rwkv7ChannelMix,
    Rwkv7ChannelMixConfig, Rwkv7Config, ShortConvolution,
};
pub use min_gru::{MinGru, MinGruConfig};
pub use min_lstm::{MinLstm, MinLstmConfig};
pub use recurrent::Recurrent;
pub use rg_lru::{RgLru, RgLruConfig};
pub use rms_norm::{RmsNorm, RmsNormConfig};
pub use rnn::{Rnn, RnnConfig};
pub use rssm::{BlockLinear, Imagined, KlLoss, Observed, Rssm, RssmConfig, RssmState};
pub use slstm::{SLstm, SLstmConfig, SLstmState};
