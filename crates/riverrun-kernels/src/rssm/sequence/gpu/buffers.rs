//! The buffers of a launch, and the kernels' arguments.

use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::rssm::sequence::Weights;

/// Buffers of a forward pass, all contiguous and, but for the noise, of the storage type; see the [contract](super::super).
#[derive(Debug, Clone)]
pub struct Forward {
    /// `[B, D]`.
    pub d0: Handle,
    /// `[B, L]`.
    pub s0: Handle,
    /// `[B, T, D]`.
    pub actions: Handle,
    /// `[B, T, H]`.
    pub tokens: Handle,
    /// `[T, B, S, C]` in `f32`.
    pub noise: Handle,
    /// `[B, T]`; not 0 means reset.
    pub reset: Option<Handle>,
    /// The weights.
    pub weights: Weights<Handle>,
    /// `[B, T, D + 2L]`, written.
    pub states: Handle,
}

/// Buffers that the forward kernel reads.
#[derive(CubeLaunch, CubeType)]
pub(super) struct Input {
    pub d0: Box<[u32]>,
    pub s0: Box<[u32]>,
    pub actions: Box<[u32]>,
    pub tokens: Box<[u32]>,
    pub noise: Box<[f32]>,
    /// All matrices, packed.
    pub weights: Box<[Vector<u32, Const<4>>]>,
    pub deter_bias: Box<[u32]>,
    pub stoch_bias: Box<[u32]>,
    pub gates_bias: Box<[u32]>,
    pub logits_bias: Box<[u32]>,
    pub deter_norm: Box<[Vector<u32, Const<4>>]>,
    pub stoch_norm: Box<[Vector<u32, Const<4>>]>,
    pub hidden_norm: Box<[Vector<u32, Const<4>>]>,
    pub posterior_norm: Box<[Vector<u32, Const<4>>]>,
}

/// Buffers that the forward kernel writes; all but the logits of a step pass from cube to cube.
#[derive(CubeLaunch, CubeType)]
pub(super) struct Output {
    /// `[B, T, D + 2L]`.
    pub states: Box<[u32]>,
    /// `[B, T, 2H]`.
    pub e: Box<[u32]>,
    /// `[B, T, D]`.
    pub x: Box<[u32]>,
    /// `[B, T, D/16]` in `f32`, rounded up to a multiple of four: the sums of squares of 16 numbers of `x` each.
    pub squares: Box<[u32]>,
    /// `[B, T, H]`.
    pub p: Box<[u32]>,
}

/// Buffers of a backward pass, all contiguous and of the storage type.
#[derive(Debug, Clone)]
pub struct Backward {
    /// `[B, T, D + 2L]`: as written by forward.
    pub states: Handle,
    /// `[B, T, D + 2L]`: `∂L/∂` of the states.
    pub d_states: Handle,
    /// `[B, T]`, as in the forward pass.
    pub reset: Option<Handle>,
    /// `[B, T, D]`: `d` before every step, 0 where it starts again.
    pub before: Handle,
    /// `e₁`, `[B, T, H]`.
    pub deter: Handle,
    /// `e₂`, `[B, T, H]`.
    pub stoch: Handle,
    /// `x`, `[B, T, D]`.
    pub hidden: Handle,
    /// `[G, B·T, 3W]`.
    pub gates: Handle,
    /// `p`, `[B, T, H]`.
    pub posterior: Handle,
    /// The weights; biases are not read.
    pub weights: Weights<Handle>,
    /// The gradients, written.
    pub gradients: Gradients,
}

/// The gradients of the layers' values, and of the state before the first step.
#[derive(Debug, Clone)]
pub struct Gradients {
    /// Gradient of `n(e₁)`, `[B, T, H]`.
    pub deter: Handle,
    /// Gradient of `n(e₂)`, `[B, T, H]`.
    pub stoch: Handle,
    /// Gradient of `n(x)`, `[G, B·T, W]`.
    pub hidden: Handle,
    /// Gradient of the gates, `[G, B·T, 3W]`.
    pub gates: Handle,
    /// Gradient of `n(p)`, `[B, T, H]`.
    pub posterior: Handle,
    /// Gradient of the logits, `[B, T, L]`.
    pub logits: Handle,
    /// Gradient of `d` before the first step, `[B, D]`.
    pub d0: Handle,
    /// Gradient of `s` before the first step, `[B, L]`.
    pub s0: Handle,
}

/// Buffers that the backward kernel reads.
#[derive(CubeLaunch, CubeType)]
pub(super) struct BackwardInput {
    pub states: Box<[u32]>,
    pub d_states: Box<[u32]>,
    pub before: Box<[u32]>,
    pub deter: Box<[u32]>,
    pub stoch: Box<[u32]>,
    pub x: Box<[u32]>,
    pub gates: Box<[u32]>,
    pub posterior: Box<[u32]>,
    /// `[4, B, T]`: `1 / √(mean + ε)` of the rows of `deter`, `stoch`, `x` and `posterior`.
    pub scales: Box<[f32]>,
    /// All matrices, transposed and packed.
    pub weights: Box<[Vector<u32, Const<4>>]>,
    pub deter_norm: Box<[Vector<u32, Const<4>>]>,
    pub stoch_norm: Box<[Vector<u32, Const<4>>]>,
    pub hidden_norm: Box<[u32]>,
    pub posterior_norm: Box<[Vector<u32, Const<4>>]>,
}

/// Buffers that the backward kernel writes.
#[derive(CubeLaunch, CubeType)]
pub(super) struct BackwardOutput {
    pub deter: Box<[u32]>,
    pub stoch: Box<[u32]>,
    pub hidden: Box<[u32]>,
    pub gates: Box<[u32]>,
    pub posterior: Box<[u32]>,
    pub logits: Box<[u32]>,
    pub d0: Box<[u32]>,
    pub s0: Box<[u32]>,
    /// `∂x`, `[B, T, D]`, from cube to cube.
    pub x: Box<[u32]>,
    /// `[B, T, D/16]` in `f32`, rounded up to a multiple of four, from cube to cube.
    pub dots: Box<[u32]>,
}

/// The numbers that do not change the generated code.
#[derive(CubeLaunch, CubeType, Clone, Copy)]
pub(super) struct Span {
    pub batch: usize,
    pub steps: usize,
    /// The first sequence.
    pub first: usize,
    pub unimix: f32,
    pub deter_epsilon: f32,
    pub stoch_epsilon: f32,
    pub hidden_epsilon: f32,
    pub posterior_epsilon: f32,
}
