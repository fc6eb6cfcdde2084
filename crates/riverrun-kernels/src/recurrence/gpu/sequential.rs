//! One thread for each vector of channels (and chunk of time): loops over its steps, `len` of them in
//! registers at a time so that their loads are in flight together.
//!
//! With one chunk this is the routine for short sequences or many lanes. With several, it is the last
//! phase of [`super::chunked`]: each chunk starts from the state that the phase before wrote for it.

use cubecl::prelude::*;

use super::buffers::*;
use super::storage::{narrow, widen};
use super::tile::*;

/// Which lane, sequence and chunk a thread works on.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Lane {
    pub col: usize,
    pub batch: usize,
    pub chunk: usize,
    pub inside: bool,
}

#[cube]
pub(super) fn lane(geometry: &Geometry, chunking: &Chunking) -> Lane {
    let pos = ABSOLUTE_POS;
    let col = pos % geometry.cols;
    let rest = pos / geometry.cols;
    let batch = rest % chunking.batches;
    let chunk = rest / chunking.batches;
    Lane {
        col,
        batch,
        chunk,
        inside: chunk * chunking.chunk_len < geometry.steps,
    }
}

/// The tile from step `first` on; the lane is inside.
#[cube]
pub(super) fn tile_place(lane: &Lane, first: usize) -> Place {
    Place {
        batch: lane.batch,
        col: lane.col,
        first,
        inside: true,
    }
}

/// Threads: `cols · batches · chunks`. The length of a chunk is a multiple of `config.len`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn sequential_forward<S: Numeric, R: Numeric, W: Size, N: Size>(
    inputs: &GateInputs<S, W>,
    initial: &[Vector<S, W>],
    reset: &[R],
    carries: &[Vector<f32, N>],
    h: &mut [Vector<S, W>],
    geometry: Geometry,
    chunking: Chunking,
    #[comptime] carried: bool,
    #[comptime] config: Config,
    #[define(S, R)] _types: [ElemType; 2],
) {
    let at = lane(&geometry, &chunking);
    if !at.inside {
        terminate!();
    }
    let mut state = Vector::<f32, N>::new(0.0f32);
    if comptime!(carried) {
        state = carries[(at.chunk * chunking.batches + at.batch) * geometry.cols + at.col];
    } else if comptime!(config.initial) {
        state = widen::<S, W, N>(initial[at.batch * geometry.cols + at.col], config.storage);
    }
    let start = at.chunk * chunking.chunk_len;
    let end = (start + chunking.chunk_len).min(geometry.steps);
    let tiles = (end - start).div_ceil(comptime!(config.len));
    for i in 0..tiles {
        let place = tile_place(&at, start + i * comptime!(config.len));
        let tile = load_forward::<S, R, W, N>(inputs, reset, &geometry, &place, config);
        state = apply_forward::<S, W, N>(&tile, state, h, &geometry, &place, config);
    }
}

/// As [`sequential_forward`]; the last chunk of time order also writes `∂L/∂h0`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn sequential_backward<S: Numeric, R: Numeric, W: Size, N: Size>(
    inputs: &GateInputs<S, W>,
    states: &StateGradients<S, W>,
    initial: &[Vector<S, W>],
    reset: &[R],
    carries: &[Vector<f32, N>],
    outputs: &mut InputGradients<S, W>,
    geometry: Geometry,
    chunking: Chunking,
    #[comptime] carried: bool,
    #[comptime] config: Config,
    #[define(S, R)] _types: [ElemType; 2],
) {
    let at = lane(&geometry, &chunking);
    if !at.inside {
        terminate!();
    }
    let slot = at.batch * geometry.cols + at.col;
    let mut state = Vector::<f32, N>::new(0.0f32);
    if comptime!(carried) {
        state = carries[(at.chunk * chunking.batches + at.batch) * geometry.cols + at.col];
    } else if comptime!(config.initial) {
        state = widen::<S, W, N>(initial[slot], config.storage);
    }
    let start = at.chunk * chunking.chunk_len;
    let end = (start + chunking.chunk_len).min(geometry.steps);
    let tiles = (end - start).div_ceil(comptime!(config.len));
    for i in 0..tiles {
        let place = tile_place(&at, start + i * comptime!(config.len));
        let tile = load_backward::<S, R, W>(inputs, states, reset, &geometry, &place, config);
        state = apply_backward::<S, W, N>(&tile, state, outputs, &geometry, &place, config);
    }
    if end == geometry.steps {
        outputs.d_h0[slot] = narrow::<S, W, N>(state, config.storage);
    }
}
