//! Fast recurrent layers (minGRU, minLSTM, RG-LRU, GRU, LSTM, Gated DeltaNet, Mamba-2) for [Burn](https://burn.dev), on CPUs and
//! GPUs.
//!
//! - [`nn`]: layers, with one trait for sequences, chunks and single steps.
//! - [`ops`]: the linear recurrence `h_t = a_t ∘ h_{t-1} + b_t`, its gated forms, recurrences with a matrix for a state, and
//!   GRU, LSTM and Elman cells, on [`Tensor`](burn::Tensor), differentiable in every input, on every backend of this build.
//! - `weights`: weights from and to PyTorch, from Burn, Keras and cuDNN (feature `store`).
//! - [`device`]: the devices of this build and machine, their memory, their errors.
//! - [`Recording`]: launches recorded once and replayed.
//! - [`training`]: what a trainer needs beside them; unstable.
//!
//! | feature | what it adds |
//! | --- | --- |
//! | `flex` (default) | the CPU |
//! | `autodiff` (default) | gradients |
//! | `cuda`, `rocm`, `vulkan`, `metal`, `webgpu`, `wgpu` | GPUs |
//! | `store` (default) | weights from and to files |
//! | `check` | checks on tensors, for tests; outside the stable interface |
//!
//! ```
//! # #[cfg(feature = "flex")] {
//! use burn::tensor::{Device, Distribution, Tensor};
//! use riverrun::Sequence;
//! use riverrun::nn::{MinGruConfig, Recurrent};
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

// Some parts serve differentiation only.
#![cfg_attr(not(feature = "autodiff"), allow(dead_code, unused_imports))]

#[cfg(feature = "check")]
pub mod check;
pub mod device;
mod error;
#[doc(hidden)]
pub mod internal;
pub mod nn;
pub mod ops;
mod recording;
mod sequence;
pub mod training;
#[cfg(feature = "store")]
pub mod weights;

pub use burn;
pub use error::Error;
pub use ops::hand_over::{Neighbours, StateTransport, StreamTransport};
pub use recording::{Preparation, Recording};
pub use riverrun_kernels::Error as KernelError;
pub use sequence::Sequence;

/// The library part of the README, compiled.
#[cfg(all(doctest, feature = "flex"))]
#[doc = include_str!("../../../README.md")]
pub struct Readme;
