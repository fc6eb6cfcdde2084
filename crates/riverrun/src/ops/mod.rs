//! Operations on [`Tensor`](burn::Tensor): linear recurrences, recurrent cells, and the layers between them.
//!
//! Every recurrence here has the same contract. Layout `[B, T, D]` with channels last; any `B, T ≥ 0`, `D ≥ 1`;
//! storage `f32`, `f16` or `bf16` (`f64` on the CPU) with `f32` carries. Gradients flow to every input, to
//! the initial state, and from the last state. Results are bit-equal from run to run, but for the
//! gradients of attention that [need not be](AttentionOptions::deterministic). See
//! [`riverrun_kernels::recurrence`] for the mathematics and the order of steps.

mod activation;
pub(crate) mod adamw;
pub(crate) mod attention;
pub(crate) mod attention_step;
mod block_diagonal;
pub(crate) mod cell;
mod cross_entropy;
pub(crate) mod delta_step;
pub(crate) mod draw;
mod dropout;
pub(crate) mod early_sum;
mod embedding;
mod encoder;
pub(crate) mod enqueue;
pub(crate) mod few_rows;
pub(crate) mod flat;
pub(crate) mod hand_over;
pub(crate) mod linear;
pub(crate) mod log_decay;
pub(crate) mod matrix_state;
pub(crate) mod norm;
mod random;
mod recurrence;
pub(crate) mod refill;
mod rg_lru;
mod rollout;
mod rotary;
pub(crate) mod rssm;
mod short_convolution;
pub(crate) mod split;
pub(crate) mod support;

pub use activation::{geglu, gelu, glu, sigmoid, silu, swiglu};
pub(crate) use attention::packed_attention;
pub use attention::{AttentionOptions, attention};
pub use block_diagonal::block_diagonal_scan;
pub use cell::{Activation, Cell, CellOptions, CellState, CellWeights, ResetGate, cell_layer};
pub use cross_entropy::cross_entropy;
pub use dropout::dropout;
pub use embedding::embedding;
pub use encoder::{RunStates, encode_states};
pub use linear::{
    Arithmetic, LinearSpec, ProductLibrary, Route, WeightOrder, linear, matmul, mlp,
    product_libraries,
};
pub use matrix_state::{Decay, Erase, MatrixState, matrix_state};
pub use norm::{add_rms_norm, layer_norm, rms_norm};
pub use random::uniform;
pub use recurrence::{
    Affine, Candidate, Gate, Routine, SavedStates, ScanDerivatives, ScanDirection, ScanOptions,
    coefficients, gated_scan, linear_scan, linear_scan_gradients, linear_scan_hvp, min_gru,
    min_lstm,
};
pub use rg_lru::rg_lru_gates;
pub use rollout::{Decode, Ensemble, Rollout, rollout};
pub use rotary::rotary;
pub use short_convolution::{short_convolution, short_convolution_silu};
