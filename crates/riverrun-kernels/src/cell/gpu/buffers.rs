//! The kernels' arguments. An absent buffer is replaced by one that the kernel does not touch.

use cubecl::prelude::*;

/// Buffers that the forward kernel reads.
#[derive(CubeLaunch, CubeType)]
pub(super) struct ForwardInput {
    pub xg: Box<[u32]>,
    pub u: Box<[Vector<u32, Const<4>>]>,
    pub bias: Box<[u32]>,
    pub h0: Box<[u32]>,
    pub c0: Box<[u32]>,
    pub lengths: Box<[u32]>,
}

/// Buffers that the forward kernel writes.
#[derive(CubeLaunch, CubeType)]
pub(super) struct ForwardOutput {
    pub h: Box<[u32]>,
    pub h_last: Box<[u32]>,
    pub c_last: Box<[u32]>,
    pub saved: Box<[u32]>,
    /// `[B, T, H]`: `r ∘ h` on its way from cube to cube.
    pub gated: Box<[u32]>,
}

/// Buffers that the backward kernel reads.
#[derive(CubeLaunch, CubeType)]
pub(super) struct BackwardInput {
    pub u_t: Box<[Vector<u32, Const<4>>]>,
    pub h: Box<[u32]>,
    pub h0: Box<[u32]>,
    pub c0: Box<[u32]>,
    pub saved: Box<[u32]>,
    pub lengths: Box<[u32]>,
    pub d_h: Box<[u32]>,
    pub d_h_last: Box<[u32]>,
    pub d_c_last: Box<[u32]>,
}

/// Buffers that the backward kernel writes.
#[derive(CubeLaunch, CubeType)]
pub(super) struct BackwardOutput {
    pub d_a: Box<[u32]>,
    pub d_x: Box<[u32]>,
    pub before: Box<[u32]>,
    pub gated: Box<[u32]>,
    pub d_h0: Box<[u32]>,
    pub d_c0: Box<[u32]>,
}

/// The part of a problem that one launch runs.
#[derive(CubeLaunch, CubeType, Clone, Copy)]
pub(super) struct Span {
    pub batch: usize,
    pub steps: usize,
    /// The first sequence.
    pub first: usize,
}
