//! Recurrent layers: configuration, module and state, one file each.
//!
//! Every layer implements [`Recurrent`], so stacks, models, trainers and generators are written once. A layer
//! holds no state: it comes in with the call and goes out with the result.

mod gated;
mod linear_rnn;
mod min_gru;
mod min_lstm;
mod recurrent;
mod rg_lru;
mod rms_norm;

pub use linear_rnn::{LinearRnn, LinearRnnConfig};
pub use min_gru::{MinGru, MinGruConfig};
pub use min_lstm::{MinLstm, MinLstmConfig};
pub use recurrent::{Recurrent, Sequence};
pub use rg_lru::{RgLru, RgLruConfig};
pub use rms_norm::{RmsNorm, RmsNormConfig};
