//! One unit for each vector of channels (and chunk of time): loops over its steps, `len` of them in
//! registers at a time so that their loads are in flight together.
//!
//! With one chunk this is the routine for short sequences or many lanes. With several, it is the last
//! phase of [`super::chunked`]: each chunk starts from the state that the phase before wrote for it.

use cubecl::prelude::*;

use super::tile::*;

/// Which lane, sequence and chunk a unit works on.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Lane {
    pub col: usize,
    pub batch: usize,
    pub chunk: usize,
    pub inside: bool,
}

#[cube]
pub(super) fn lane(geometry: &Geometry, batches: usize, chunk_len: usize) -> Lane {
    let pos = ABSOLUTE_POS;
    let col = pos % geometry.cols;
    let rest = pos / geometry.cols;
    let batch = rest % batches;
    let chunk = rest / batches;
    Lane {
        col,
        batch,
        chunk,
        inside: chunk * chunk_len < geometry.steps,
    }
}

/// Units: `cols · batches · chunks`. `chunk_len` is a multiple of `config.len`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn unit_forward<F: Float, N: Size>(
    in0: &[Vector<F, N>],
    in1: &[Vector<F, N>],
    in2: &[Vector<F, N>],
    initial: &[Vector<F, N>],
    reset: &[F],
    carries: &[Vector<f32, N>],
    h: &mut [Vector<F, N>],
    geometry: Geometry,
    batches: usize,
    chunk_len: usize,
    #[comptime] carried: bool,
    #[comptime] config: Config,
    #[define(F)] _dtype: ElemType,
) {
    let at = lane(&geometry, batches, chunk_len);
    if !at.inside {
        terminate!();
    }
    let mut state = Vector::<f32, N>::new(0.0f32);
    if comptime!(carried) {
        state = carries[(at.chunk * batches + at.batch) * geometry.cols + at.col];
    } else if comptime!(config.initial) {
        state = Vector::cast_from(initial[at.batch * geometry.cols + at.col]);
    }
    let start = at.chunk * chunk_len;
    let end = (start + chunk_len).min(geometry.steps);
    let tiles = (end - start).div_ceil(comptime!(config.len));
    for i in 0..tiles {
        let first = start + i * comptime!(config.len);
        let tile = load_forward::<F, N>(
            in0, in1, in2, reset, &geometry, at.batch, at.col, first, config,
        );
        state = apply_forward::<F, N>(
            &tile, state, h, &geometry, at.batch, at.col, first, true, config,
        );
    }
}

/// As [`unit_forward`]; the last chunk of time order also writes `∂L/∂h0`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn unit_backward<F: Float, N: Size>(
    in0: &[Vector<F, N>],
    in1: &[Vector<F, N>],
    in2: &[Vector<F, N>],
    h: &[Vector<F, N>],
    h0: &[Vector<F, N>],
    d_h: &[Vector<F, N>],
    initial: &[Vector<F, N>],
    reset: &[F],
    carries: &[Vector<f32, N>],
    d0: &mut [Vector<F, N>],
    d1: &mut [Vector<F, N>],
    d_h0: &mut [Vector<F, N>],
    geometry: Geometry,
    batches: usize,
    chunk_len: usize,
    #[comptime] carried: bool,
    #[comptime] config: Config,
    #[define(F)] _dtype: ElemType,
) {
    let at = lane(&geometry, batches, chunk_len);
    if !at.inside {
        terminate!();
    }
    let slot = at.batch * geometry.cols + at.col;
    let mut state = Vector::<f32, N>::new(0.0f32);
    if comptime!(carried) {
        state = carries[(at.chunk * batches + at.batch) * geometry.cols + at.col];
    } else if comptime!(config.initial) {
        state = Vector::cast_from(initial[slot]);
    }
    let start = at.chunk * chunk_len;
    let end = (start + chunk_len).min(geometry.steps);
    let tiles = (end - start).div_ceil(comptime!(config.len));
    for i in 0..tiles {
        let first = start + i * comptime!(config.len);
        let tile = load_backward::<F, N>(
            in0, in1, in2, h, h0, d_h, reset, &geometry, at.batch, at.col, first, config,
        );
        state = apply_backward::<F, N>(
            &tile, state, d0, d1, &geometry, at.batch, at.col, first, true, config,
        );
    }
    if end == geometry.steps {
        d_h0[slot] = Vector::cast_from(state);
    }
}
