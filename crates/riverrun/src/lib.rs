//! Recurrent networks at the speed of the memory they move, for [Burn](https://burn.dev).
//!
//! - [`ops`]: the linear recurrence `h_t = a_t ∘ h_{t-1} + b_t`, and GRU, LSTM and Elman cells, on
//!   [`Tensor`](burn::Tensor), differentiable in everything, on every backend enabled.
//! - [`nn`]: layers on it, with one trait for sequences, chunks and single steps.
//! - [`weights`]: weights of other frameworks, both ways.
//! - [`models`]: a residual stack and a language model.
//! - [`device`]: which devices this build and machine have.
//!
//! ```
//! # #[cfg(feature = "flex")] {
//! use burn::tensor::{Device, Distribution, Tensor};
//! use riverrun::nn::{MinGruConfig, Recurrent, Sequence};
//!
//! let device = Device::flex();
//! let layer = MinGruConfig::new(8, 16).init(&device);
//! let x = Tensor::<3>::random([2, 10, 8], Distribution::Default, &device);
//! let (y, state) = layer.run(x.clone(), Sequence::new());
//! assert_eq!(y.dims(), [2, 10, 16]);
//! // The same layer, one step at a time, from where the sequence ended.
//! let (y1, _state) = layer.step(x.narrow(1, 0, 1).squeeze_dim(1), Some(state));
//! assert_eq!(y1.dims(), [2, 16]);
//! # }
//! ```

#[cfg(feature = "check")]
pub mod check;
pub mod device;
mod error;
pub mod models;
pub mod nn;
pub mod ops;
mod recording;
mod sequence;
pub mod weights;

pub use burn;
pub use error::Error;
pub use recording::Recording;
pub use riverrun_kernels as kernels;
pub use sequence::Sequence;
