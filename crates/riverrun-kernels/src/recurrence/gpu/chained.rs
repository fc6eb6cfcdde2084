//! The single pass: every element is read once and written once.
//!
//! A cube of 32 lanes × `planes` takes a tile of 32 vectors of channels × (`planes` · `len`) steps into
//! registers, reduces it to one affine map, learns the state before it from earlier tiles
//! ([`super::handover`]), and runs the tile from there. Tiles are numbered by a ticket drawn from device
//! memory, time after channels: a tile waits only for tiles whose cubes have started before it.

use cubecl::prelude::*;

use super::handover::*;
use super::tile::*;

/// Units a plane, as this kernel lays them out; nothing in it depends on the hardware's plane size.
pub(super) const LANES: usize = 32;

#[cube]
fn place(
    geometry: &Geometry,
    control: &mut [Atomic<u32>],
    batches: usize,
    chunks: usize,
    #[comptime] planes: usize,
    #[comptime] config: Config,
) -> Place {
    let tiles_per_row = geometry.cols.div_ceil(LANES);
    let tiles = batches * tiles_per_row;
    let id = draw_ticket(control);
    let chunk = id / tiles;
    let tile = id % tiles;
    let batch = tile / tiles_per_row;
    let col = (tile % tiles_per_row) * LANES + UNIT_POS_X as usize;
    Place {
        chunk,
        chunks,
        tile,
        tiles,
        batch,
        col: col.min(geometry.cols - 1),
        first: (chunk * comptime!(planes) + UNIT_POS_Y as usize) * comptime!(config.len),
        inside: col < geometry.cols,
        exists: chunk < chunks,
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn chained_forward<F: Float, N: Size>(
    in0: &[Vector<F, N>],
    in1: &[Vector<F, N>],
    in2: &[Vector<F, N>],
    initial: &[Vector<F, N>],
    reset: &[F],
    words: &mut [Atomic<u64>],
    control: &mut [Atomic<u32>],
    h: &mut [Vector<F, N>],
    geometry: Geometry,
    batches: usize,
    chunks: usize,
    epoch: u32,
    spins: u32,
    #[comptime] planes: usize,
    #[comptime] share: usize,
    #[comptime] config: Config,
    #[define(F)] _dtype: ElemType,
) {
    let at = place(&geometry, control, batches, chunks, planes, config);
    if !at.exists {
        terminate!();
    }
    let tile = load_forward::<F, N>(
        in0, in1, in2, reset, &geometry, at.batch, at.col, at.first, config,
    );
    let run = reduce_forward::<N>(&tile, config);
    let mut start = Vector::<f32, N>::new(0.0f32);
    if comptime!(config.initial) {
        start = Vector::cast_from(initial[at.batch * geometry.cols + at.col]);
    }
    let state = hand_over::<N>(
        run,
        start,
        &at,
        words,
        control,
        &Watch { epoch, spins },
        planes,
        share,
    );
    apply_forward::<F, N>(
        &tile, state, h, &geometry, at.batch, at.col, at.first, at.inside, config,
    );
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn chained_backward<F: Float, N: Size>(
    in0: &[Vector<F, N>],
    in1: &[Vector<F, N>],
    in2: &[Vector<F, N>],
    h: &[Vector<F, N>],
    h0: &[Vector<F, N>],
    d_h: &[Vector<F, N>],
    initial: &[Vector<F, N>],
    reset: &[F],
    words: &mut [Atomic<u64>],
    control: &mut [Atomic<u32>],
    d0: &mut [Vector<F, N>],
    d1: &mut [Vector<F, N>],
    d_h0: &mut [Vector<F, N>],
    geometry: Geometry,
    batches: usize,
    chunks: usize,
    epoch: u32,
    spins: u32,
    #[comptime] planes: usize,
    #[comptime] share: usize,
    #[comptime] config: Config,
    #[define(F)] _dtype: ElemType,
) {
    let at = place(&geometry, control, batches, chunks, planes, config);
    if !at.exists {
        terminate!();
    }
    let tile = load_backward::<F, N>(
        in0, in1, in2, h, h0, d_h, reset, &geometry, at.batch, at.col, at.first, config,
    );
    let run = reduce_backward::<F, N>(&tile, &geometry, at.first, config);
    let slot = at.batch * geometry.cols + at.col;
    let mut start = Vector::<f32, N>::new(0.0f32);
    if comptime!(config.initial) {
        start = Vector::cast_from(initial[slot]);
    }
    let state = hand_over::<N>(
        run,
        start,
        &at,
        words,
        control,
        &Watch { epoch, spins },
        planes,
        share,
    );
    let state = apply_backward::<F, N>(
        &tile, state, d0, d1, &geometry, at.batch, at.col, at.first, at.inside, config,
    );
    if at.inside && at.chunk + 1 == at.chunks && UNIT_POS_Y as usize == comptime!(planes - 1) {
        d_h0[slot] = Vector::cast_from(state);
    }
}
