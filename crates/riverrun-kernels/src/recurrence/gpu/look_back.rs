//! The single pass: every element is read once and written once.
//!
//! A cube of 32 lanes × `planes` takes a tile of 32 vectors of channels × (`planes` · `len`) steps into
//! registers, reduces it to one affine map, learns the state before it from earlier tiles
//! ([`super::handover`]), and runs the tile from there. Tiles are numbered by a ticket drawn from device
//! memory, time after channels: a tile waits only for tiles whose cubes have started before it.

use cubecl::prelude::*;

use super::buffers::*;
use super::handover::*;
use super::storage::{narrow, widen};
use super::tile::*;

#[cube]
fn tile_position(
    geometry: &Geometry,
    ticket: &mut [Atomic<u32>],
    tiling: &Tiling,
    #[comptime] planes: usize,
    #[comptime] config: Config,
) -> TilePosition {
    // A ticket has 32 bits, so the counts that it is taken apart by fit in them: with 64-bit addresses, half the
    // registers, and no division in software.
    let lanes = comptime!(LANES as u32);
    let tiles_per_row = u32::cast_from(geometry.cols.div_ceil(LANES));
    let tiles = u32::cast_from(tiling.batches) * tiles_per_row;
    let id = draw_ticket(ticket);
    let chunk = id / tiles;
    let tile = id % tiles;
    let batch = tile / tiles_per_row;
    let col = ((tile % tiles_per_row) * lanes + UNIT_POS_X) as usize;
    TilePosition {
        chunk: chunk as usize,
        chunks: tiling.chunks,
        tile: tile as usize,
        tiles: tiles as usize,
        place: Place {
            batch: batch as usize,
            col: col.min(geometry.cols - 1),
            first: (chunk as usize * comptime!(planes) + UNIT_POS_Y as usize)
                * comptime!(config.len),
            inside: col < geometry.cols,
        },
        exists: (chunk as usize) < tiling.chunks,
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn look_back_forward<S: Numeric, R: Numeric, W: Size, N: Size>(
    inputs: &GateInputs<S, W>,
    initial: &[Vector<S, W>],
    reset: &[R],
    handover: &mut HandoverWords,
    h: &mut [Vector<S, W>],
    geometry: Geometry,
    tiling: Tiling,
    #[comptime] planes: usize,
    #[comptime] lookback: usize,
    #[comptime] config: Config,
    #[define(S, R)] _types: [ElemType; 2],
) {
    let at = tile_position(&geometry, &mut handover.ticket, &tiling, planes, config);
    if !at.exists {
        terminate!();
    }
    let tile = load_forward::<S, R, W, N>(inputs, reset, &geometry, &at.place, config);
    let run = reduce_forward::<S, W, N>(&tile, config);
    let mut start = Vector::<f32, N>::new(0.0f32);
    if comptime!(config.initial) {
        start = widen::<S, W, N>(
            initial[at.place.batch * geometry.cols + at.place.col],
            config.storage,
        );
    }
    let state = hand_over::<N>(
        run,
        start,
        &at,
        handover,
        tiling.epoch,
        planes,
        lookback,
        config,
    );
    apply_forward::<S, W, N>(&tile, state, h, &geometry, &at.place, config);
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn look_back_backward<S: Numeric, R: Numeric, W: Size, N: Size>(
    inputs: &GateInputs<S, W>,
    states: &StateGradients<S, W>,
    initial: &[Vector<S, W>],
    reset: &[R],
    handover: &mut HandoverWords,
    outputs: &mut InputGradients<S, W>,
    geometry: Geometry,
    tiling: Tiling,
    #[comptime] planes: usize,
    #[comptime] lookback: usize,
    #[comptime] config: Config,
    #[define(S, R)] _types: [ElemType; 2],
) {
    let at = tile_position(&geometry, &mut handover.ticket, &tiling, planes, config);
    if !at.exists {
        terminate!();
    }
    let tile = load_backward::<S, R, W>(inputs, states, reset, &geometry, &at.place, config);
    let run = reduce_backward::<S, W, N>(&tile, &geometry, at.place.first, config);
    let slot = at.place.batch * geometry.cols + at.place.col;
    let mut start = Vector::<f32, N>::new(0.0f32);
    if comptime!(config.initial) {
        start = widen::<S, W, N>(initial[slot], config.storage);
    }
    let state = hand_over::<N>(
        run,
        start,
        &at,
        handover,
        tiling.epoch,
        planes,
        lookback,
        config,
    );
    let state = apply_backward::<S, W, N>(&tile, state, outputs, &geometry, &at.place, config);
    if at.place.inside && at.chunk + 1 == at.chunks && UNIT_POS_Y as usize == comptime!(planes - 1)
    {
        outputs.d_h0[slot] = narrow::<S, W, N>(state, config.storage);
    }
}
