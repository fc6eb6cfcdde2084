//! One thread for each vector of channels (and chunk of time): loops over its steps, `len` of them in
//! registers at a time so that their loads are in flight together. A gate in 16 bits reads the step `len` steps later as soon as
//! one has been taken, so that as many loads are always in flight.
//!
//! With one chunk this is the routine for short sequences or many lanes. With several, it is the last
//! phase of [`super::chunked`]: each chunk starts from the state that the phase before wrote for it.

use cubecl::prelude::*;

use super::buffers::*;
use super::storage::{Storage, narrow, widen};
use super::tile::*;
use crate::recurrence::Gate;

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
    let len = comptime!(config.len);
    let mut place = tile_place(&at, at.chunk * chunking.chunk_len);
    let end = (place.first + chunking.chunk_len).min(geometry.steps);
    if comptime!(is_ring(carried, config)) {
        if place.first + 2 * len <= end {
            let mut tile = load_forward::<S, R, W, N>(inputs, reset, &geometry, &place, config);
            while place.first + 2 * len <= end {
                state = advance_forward::<S, R, W, N>(
                    &mut tile, state, inputs, reset, h, &geometry, &place, config,
                );
                place.first += len;
            }
            state = apply_forward::<S, W, N>(&tile, state, h, &geometry, &place, config);
            place.first += len;
        }
    }
    while place.first < end {
        let tile = load_forward::<S, R, W, N>(inputs, reset, &geometry, &place, config);
        state = apply_forward::<S, W, N>(&tile, state, h, &geometry, &place, config);
        place.first += len;
    }
}

/// Whether a thread reads ahead of the step that it takes.
fn is_ring(carried: bool, config: Config) -> bool {
    !carried && config.storage != Storage::Plain && config.gate != Gate::Raw
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
    let len = comptime!(config.len);
    let mut place = tile_place(&at, at.chunk * chunking.chunk_len);
    let end = (place.first + chunking.chunk_len).min(geometry.steps);
    if comptime!(is_ring(carried, config)) {
        if place.first + 2 * len < end {
            let mut tile =
                load_backward::<S, R, W>(inputs, states, reset, &geometry, &place, config);
            while place.first + 2 * len < end {
                state = advance_backward::<S, R, W, N>(
                    &mut tile, state, inputs, states, reset, outputs, &geometry, &place, config,
                );
                place.first += len;
            }
            state = apply_backward::<S, W, N>(&tile, state, outputs, &geometry, &place, config);
            place.first += len;
        }
    }
    while place.first < end {
        let tile = load_backward::<S, R, W>(inputs, states, reset, &geometry, &place, config);
        state = apply_backward::<S, W, N>(&tile, state, outputs, &geometry, &place, config);
        place.first += len;
    }
    if end == geometry.steps {
        outputs.d_h0[slot] = narrow::<S, W, N>(state, config.storage);
    }
}
