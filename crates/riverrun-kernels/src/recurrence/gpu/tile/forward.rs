//! Steps of the forward pass.

use cubecl::prelude::*;

use super::*;
use crate::gpu::storage::{narrow, widen};
use crate::recurrence::gates::coefficients;
use crate::recurrence::gates::gpu::Affine;

/// Forward: `len` steps in registers, see [`Registers`].
#[derive(CubeType)]
pub(crate) struct ForwardTile<S: Numeric, W: Size, N: Size> {
    p0: Array<Vector<S, W>>,
    p1: Array<Vector<S, W>>,
    p2: Array<Vector<S, W>>,
    a: Array<Vector<f32, N>>,
    b: Array<Vector<f32, N>>,
    cut: Array<u32>,
}

/// Loads a tile. Steps past the end read the last row; nothing after them looks at the state.
#[cube]
pub(crate) fn load_forward<S: Numeric, R: Numeric, W: Size, N: Size>(
    in0: &[Vector<S, W>],
    in1: &[Vector<S, W>],
    in2: &[Vector<S, W>],
    reset: &[R],
    geometry: &Geometry,
    batch: usize,
    col: usize,
    first: usize,
    #[comptime] config: Config,
) -> ForwardTile<S, W, N> {
    let len = comptime!(config.len);
    let mut tile = ForwardTile::<S, W, N> {
        p0: Array::<Vector<S, W>>::new(len),
        p1: Array::<Vector<S, W>>::new(len),
        p2: Array::<Vector<S, W>>::new(len),
        a: Array::<Vector<f32, N>>::new(len),
        b: Array::<Vector<f32, N>>::new(len),
        cut: Array::<u32>::new(len),
    };
    if first + len <= geometry.steps {
        fill_forward::<S, R, W, N>(
            &mut tile, in0, in1, in2, reset, geometry, batch, col, first, false, config,
        );
    } else {
        fill_forward::<S, R, W, N>(
            &mut tile, in0, in1, in2, reset, geometry, batch, col, first, true, config,
        );
    }
    if comptime!(config.registers == Registers::Coefficients) {
        #[unroll]
        for u in 0..len {
            let step = computed::<S, W, N>(&tile, u, config);
            tile.a[u] = step.a;
            tile.b[u] = step.b;
        }
    }
    tile
}

#[cube]
fn fill_forward<S: Numeric, R: Numeric, W: Size, N: Size>(
    tile: &mut ForwardTile<S, W, N>,
    in0: &[Vector<S, W>],
    in1: &[Vector<S, W>],
    in2: &[Vector<S, W>],
    reset: &[R],
    geometry: &Geometry,
    batch: usize,
    col: usize,
    first: usize,
    #[comptime] tail: bool,
    #[comptime] config: Config,
) {
    let base_0 = geometry.offset_0 + batch * geometry.batch_0 + col;
    let base_1 = geometry.offset_1 + batch * geometry.batch_1 + col;
    let base_2 = geometry.offset_2 + batch * geometry.batch_2 + col;
    let steps = geometry.steps;
    let down = comptime!(config.reverse);
    #[unroll]
    for u in 0..comptime!(config.len) {
        tile.p0[u] = in0[element(base_0, geometry.step_0, first, u, steps, tail, down)];
        tile.p1[u] = in1[element(base_1, geometry.step_1, first, u, steps, tail, down)];
        if comptime!(config.needs_p2()) {
            tile.p2[u] = in2[element(base_2, geometry.step_2, first, u, steps, tail, down)];
        }
        if comptime!(config.reset) {
            let at = element(batch * steps, 1, first, u, steps, tail, down);
            tile.cut[u] = u32::cast_from(reset[at] != R::from_int(0));
        }
    }
}

/// The coefficients of step `u`, from its inputs.
#[cube]
fn computed<S: Numeric, W: Size, N: Size>(
    tile: &ForwardTile<S, W, N>,
    #[comptime] u: usize,
    #[comptime] config: Config,
) -> Affine<N> {
    let x0 = widen::<S, W, N>(tile.p0[u], config.storage);
    let x1 = widen::<S, W, N>(tile.p1[u], config.storage);
    let mut x2 = x1;
    if comptime!(config.needs_p2()) {
        x2 = widen::<S, W, N>(tile.p2[u], config.storage);
    }
    coefficients::<N>(x0, x1, x2, config.gate, config.ptx)
}

/// The coefficients of step `u`.
#[cube]
fn step<S: Numeric, W: Size, N: Size>(
    tile: &ForwardTile<S, W, N>,
    #[comptime] u: usize,
    #[comptime] config: Config,
) -> Affine<N> {
    if comptime!(config.registers == Registers::Inputs) {
        computed::<S, W, N>(tile, u, config)
    } else {
        Affine::<N> {
            a: tile.a[u],
            b: tile.b[u],
        }
    }
}

#[cube]
pub(crate) fn reduce_forward<S: Numeric, W: Size, N: Size>(
    tile: &ForwardTile<S, W, N>,
    #[comptime] config: Config,
) -> Run<N> {
    let mut run_a = Vector::<f32, N>::new(1.0f32);
    let mut run_h = Vector::<f32, N>::new(0.0f32);
    let mut run_cut = 0u32;
    #[unroll]
    for u in 0..comptime!(config.len) {
        let at = step::<S, W, N>(tile, u, config);
        if comptime!(config.reset) {
            let zero = Vector::<f32, N>::new(0.0f32);
            let cut = tile.cut[u] != 0;
            run_a = select(cut, zero, run_a);
            run_h = select(cut, zero, run_h);
            run_cut |= tile.cut[u];
        }
        run_h = fma(at.a, run_h, at.b);
        run_a *= at.a;
    }
    Run::<N> {
        a: run_a,
        h: run_h,
        cut: run_cut,
    }
}

/// Runs the state through the tile, writing it after each step; returns the last, if the lane is inside.
#[cube]
pub(crate) fn apply_forward<S: Numeric, W: Size, N: Size>(
    tile: &ForwardTile<S, W, N>,
    state: Vector<f32, N>,
    h: &mut [Vector<S, W>],
    geometry: &Geometry,
    batch: usize,
    col: usize,
    first: usize,
    inside: bool,
    #[comptime] config: Config,
) -> Vector<f32, N> {
    let mut last = state;
    if inside {
        if first + comptime!(config.len) <= geometry.steps {
            last = write_forward::<S, W, N>(
                tile, state, h, geometry, batch, col, first, false, config,
            );
        } else {
            last =
                write_forward::<S, W, N>(tile, state, h, geometry, batch, col, first, true, config);
        }
    }
    last
}

#[cube]
fn write_forward<S: Numeric, W: Size, N: Size>(
    tile: &ForwardTile<S, W, N>,
    state: Vector<f32, N>,
    h: &mut [Vector<S, W>],
    geometry: &Geometry,
    batch: usize,
    col: usize,
    first: usize,
    #[comptime] tail: bool,
    #[comptime] config: Config,
) -> Vector<f32, N> {
    let mut state = state;
    let cols = geometry.cols;
    let steps = geometry.steps;
    let down = comptime!(config.reverse);
    let base = batch * steps * cols + col;
    #[unroll]
    for u in 0..comptime!(config.len) {
        if comptime!(config.reset) {
            state = select(tile.cut[u] != 0, Vector::new(0.0f32), state);
        }
        let at = step::<S, W, N>(tile, u, config);
        state = fma(at.a, state, at.b);
        if comptime!(tail) {
            if first + u < steps {
                h[element(base, cols, first, u, steps, true, down)] =
                    narrow::<S, W, N>(state, config.storage);
            }
        } else {
            h[element(base, cols, first, u, steps, false, down)] =
                narrow::<S, W, N>(state, config.storage);
        }
    }
    state
}
