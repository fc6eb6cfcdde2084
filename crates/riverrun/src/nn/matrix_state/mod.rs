//! Layers with a matrix for the state of each head, on [`ops::matrix_state`](crate::ops::matrix_state()).

mod channel_mix;
mod decay;
mod delta_net;
mod gated_delta_net;
mod gla;
mod heads;
mod hgrn2;
mod kda;
mod layer;
mod low_rank;
mod mamba2;
mod max_plus;
mod mlstm;
mod parts;
mod ret_net;
mod rwkv6;
mod rwkv7;
mod short_convolution;
mod state;
mod token_shift;

pub use channel_mix::{Rwkv7ChannelMix, Rwkv7ChannelMixConfig};
pub use decay::HeadDecay;
pub use delta_net::{DeltaNet, DeltaNetConfig};
pub use gated_delta_net::{GatedDeltaNet, GatedDeltaNetConfig};
pub use gla::{Gla, GlaConfig};
pub use hgrn2::{Hgrn2, Hgrn2Config};
pub use kda::{Kda, KdaConfig};
pub use low_rank::LowRank;
pub use mamba2::{Mamba2, Mamba2Config};
pub(super) use max_plus::LOWEST;
pub use mlstm::{MLstm, MLstmConfig};
pub use ret_net::{RetNet, RetNetConfig};
pub use rwkv6::{Rwkv6, Rwkv6Config};
pub use rwkv7::{Rwkv7, Rwkv7Config};
pub use short_convolution::ShortConvolution;
pub use state::MatrixLayerState;
