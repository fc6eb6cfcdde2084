//! Chunks of time in three launches, for devices that promise no order between cubes:
//! every chunk is reduced to one affine map, the maps are applied one after another to give each chunk
//! its first state, and [`super::sequential`] runs every chunk from there. The inputs are read twice.

use cubecl::prelude::*;

use super::buffers::*;
use super::sequential::{lane, tile_place};
use super::storage::widen;
use super::tile::*;

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn reduce_chunks_forward<S: Numeric, R: Numeric, W: Size, N: Size>(
    inputs: &GateInputs<S, W>,
    reset: &[R],
    maps: &mut [Vector<f32, N>],
    cuts: &mut [u32],
    geometry: Geometry,
    chunking: Chunking,
    #[comptime] config: Config,
    #[define(S, R)] _types: [ElemType; 2],
) {
    let at = lane(&geometry, &chunking);
    if !at.inside {
        terminate!();
    }
    let mut a = Vector::<f32, N>::new(1.0f32);
    let mut b = Vector::<f32, N>::new(0.0f32);
    let mut cut = 0u32;
    let start = at.chunk * chunking.chunk_len;
    let end = (start + chunking.chunk_len).min(geometry.steps);
    let tiles = (end - start).div_ceil(comptime!(config.len));
    for i in 0..tiles {
        let place = tile_place(&at, start + i * comptime!(config.len));
        let tile = load_forward::<S, R, W, N>(inputs, reset, &geometry, &place, config);
        let run = reduce_forward::<S, W, N>(&tile, config);
        let total = run_then::<N>(&Run::<N> { a, h: b, cut }, &run, config.reset);
        a = total.a;
        b = total.h;
        cut = total.cut;
    }
    let total = Run::<N> { a, h: b, cut };
    write_map::<N>(
        total,
        maps,
        cuts,
        at.chunk * chunking.batches + at.batch,
        at.col,
        geometry.cols,
    );
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn reduce_chunks_backward<S: Numeric, R: Numeric, W: Size, N: Size>(
    inputs: &GateInputs<S, W>,
    states: &StateGradients<S, W>,
    reset: &[R],
    maps: &mut [Vector<f32, N>],
    cuts: &mut [u32],
    geometry: Geometry,
    chunking: Chunking,
    #[comptime] config: Config,
    #[define(S, R)] _types: [ElemType; 2],
) {
    let at = lane(&geometry, &chunking);
    if !at.inside {
        terminate!();
    }
    let mut a = Vector::<f32, N>::new(1.0f32);
    let mut b = Vector::<f32, N>::new(0.0f32);
    let mut cut = 0u32;
    let start = at.chunk * chunking.chunk_len;
    let end = (start + chunking.chunk_len).min(geometry.steps);
    let tiles = (end - start).div_ceil(comptime!(config.len));
    for i in 0..tiles {
        let place = tile_place(&at, start + i * comptime!(config.len));
        let tile = load_backward::<S, R, W>(inputs, states, reset, &geometry, &place, config);
        let run = reduce_backward::<S, W, N>(&tile, &geometry, place.first, config);
        let total = run_then::<N>(&Run::<N> { a, h: b, cut }, &run, config.reset);
        a = total.a;
        b = total.h;
        cut = total.cut;
    }
    let total = Run::<N> { a, h: b, cut };
    write_map::<N>(
        total,
        maps,
        cuts,
        at.chunk * chunking.batches + at.batch,
        at.col,
        geometry.cols,
    );
}

/// `maps` holds `a` and `h` of each chunk, row after row; `cuts` one word a row.
#[cube]
fn write_map<N: Size>(
    run: Run<N>,
    maps: &mut [Vector<f32, N>],
    cuts: &mut [u32],
    row: usize,
    col: usize,
    cols: usize,
) {
    maps[(row * 2) * cols + col] = run.a;
    maps[(row * 2 + 1) * cols + col] = run.h;
    if col == 0 {
        cuts[row] = run.cut;
    }
}

/// Threads: `cols · batches`. Writes the state before each chunk.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn carry_chunks<S: Numeric, W: Size, N: Size>(
    initial: &[Vector<S, W>],
    maps: &[Vector<f32, N>],
    cuts: &[u32],
    carries: &mut [Vector<f32, N>],
    cols: usize,
    batches: usize,
    chunks: usize,
    #[comptime] config: Config,
    #[define(S)] _dtype: ElemType,
) {
    let pos = ABSOLUTE_POS;
    if pos >= cols * batches {
        terminate!();
    }
    let col = pos % cols;
    let batch = pos / cols;
    let mut state = Vector::<f32, N>::new(0.0f32);
    if comptime!(config.initial) {
        state = widen::<S, W, N>(initial[pos], config.storage);
    }
    for chunk in 0..chunks {
        let row = chunk * batches + batch;
        carries[row * cols + col] = state;
        let run = Run::<N> {
            a: maps[(row * 2) * cols + col],
            h: maps[(row * 2 + 1) * cols + col],
            cut: cuts[row],
        };
        state = run_through::<N>(&run, state, config.reset);
    }
}
