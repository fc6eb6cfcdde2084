//! The arguments of the kernels' launches. An absent buffer is replaced by another one, which the kernel does not read.

use cubecl::prelude::*;

/// The inputs of the gate, one view each; all views are of one buffer where the inputs are packed.
#[derive(CubeLaunch, CubeType)]
pub(super) struct GateInputs<S: Numeric, W: Size> {
    pub in0: Box<[Vector<S, W>]>,
    pub in1: Box<[Vector<S, W>]>,
    pub in2: Box<[Vector<S, W>]>,
}

/// The states and their gradients that the backward pass reads.
#[derive(CubeLaunch, CubeType)]
pub(super) struct StateGradients<S: Numeric, W: Size> {
    pub h: Box<[Vector<S, W>]>,
    pub h0: Box<[Vector<S, W>]>,
    pub d_h: Box<[Vector<S, W>]>,
}

/// The gradients that the backward pass writes. A packed gradient is all in `d0`.
#[derive(CubeLaunch, CubeType)]
pub(super) struct InputGradients<S: Numeric, W: Size> {
    pub d0: Box<[Vector<S, W>]>,
    pub d1: Box<[Vector<S, W>]>,
    pub d_h0: Box<[Vector<S, W>]>,
}

/// The words that the tiles of a look-back hand over, the next ticket and the fault.
#[derive(CubeLaunch, CubeType)]
pub(super) struct HandoverWords {
    pub words: Box<[Atomic<u64>]>,
    pub ticket: Box<[Atomic<u32>]>,
    pub fault: Box<[Atomic<u32>]>,
}

/// The sequences of a launch, and the steps of a chunk.
#[derive(CubeLaunch, CubeType, Clone, Copy)]
pub(super) struct Chunking {
    pub batches: usize,
    pub chunk_len: usize,
}

/// The tiles of a look-back, beside those of a row of channels.
#[derive(CubeLaunch, CubeType, Clone, Copy)]
pub(super) struct Tiling {
    pub batches: usize,
    /// Tiles along time.
    pub chunks: usize,
    /// The number of the launch.
    pub epoch: u32,
}
