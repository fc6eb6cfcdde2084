//! Layers with a matrix for the state of each head, on [`ops::matrix_state`](crate::ops::matrix_state()).

mod decay;
mod gated_delta_net;
mod heads;
mod mamba2;
mod parts;
mod short_convolution;
mod state;

pub use decay::HeadDecay;
pub use gated_delta_net::{GatedDeltaNet, GatedDeltaNetConfig};
pub use mamba2::{Mamba2, Mamba2Config};
pub use short_convolution::ShortConvolution;
pub use state::MatrixLayerState;
