//! Operations, layers and weights, on the CPU and on a GPU where there is one.

mod affine;
mod attention;
mod block_diagonal;
mod cells;
#[path = "../common/mod.rs"]
mod common;
mod contract;
mod dropout;
#[cfg(feature = "flex")]
mod early_sums;
mod empty;
mod gates;
#[path = "../common/golden.rs"]
mod golden;
mod layers;
mod linear;
mod matrix_state;
#[cfg(feature = "flex")]
mod neighbours;
mod ops;
mod optimizer;
#[path = "../common/padded.rs"]
mod padded;
#[path = "../common/parameters.rs"]
mod parameters;
#[cfg(feature = "flex")]
mod quantized;
mod recompute;
#[cfg(feature = "flex")]
mod rollout;
mod rows;
#[cfg(feature = "flex")]
mod rssm;

use burn::tensor::{Device, Distribution, Int, Tensor};

/// Numbers above -0.95 and below 0.95: coefficients of scans that fade.
fn random<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::random(shape, Distribution::Uniform(-0.95, 0.95), device)
}

fn normal<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), device)
}

/// A key of random numbers.
fn key(words: [i32; 4], device: &Device) -> Tensor<1, Int> {
    Tensor::from_ints(words, device)
}
