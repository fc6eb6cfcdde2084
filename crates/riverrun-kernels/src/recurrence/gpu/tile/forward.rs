//! Steps of the forward pass.

use cubecl::prelude::*;

use super::*;
use crate::gpu::storage::narrow;
use crate::recurrence::gates::coefficients;
use crate::recurrence::gates::gpu::Affine;

/// Forward: `len` steps in registers, see [`Registers`].
#[derive(CubeType)]
pub(crate) struct ForwardTile<S: Numeric, W: Size, N: Size> {
    inputs: InputTile<S, W>,
    a: Array<Vector<f32, N>>,
    b: Array<Vector<f32, N>>,
}

/// Loads a tile. Steps past the end read the last row; nothing after them looks at the state.
#[cube]
pub(crate) fn load_forward<S: Numeric, R: Numeric, W: Size, N: Size>(
    inputs: &GateInputs<S, W>,
    reset: &[R],
    geometry: &Geometry,
    at: &Place,
    #[comptime] config: Config,
) -> ForwardTile<S, W, N> {
    let len = comptime!(config.len);
    let mut tile = ForwardTile::<S, W, N> {
        inputs: empty_inputs::<S, W>(len),
        a: Array::<Vector<f32, N>>::new(len),
        b: Array::<Vector<f32, N>>::new(len),
    };
    if at.first + len <= geometry.steps {
        fill_forward::<S, R, W>(&mut tile.inputs, inputs, reset, geometry, at, false, config);
    } else {
        fill_forward::<S, R, W>(&mut tile.inputs, inputs, reset, geometry, at, true, config);
    }
    if comptime!(config.registers == Registers::Coefficients) {
        #[unroll]
        for u in 0..len {
            let step = computed::<S, W, N>(&tile.inputs, u, config);
            tile.a[u] = step.a;
            tile.b[u] = step.b;
        }
    }
    tile
}

#[cube]
fn fill_forward<S: Numeric, R: Numeric, W: Size>(
    tile: &mut InputTile<S, W>,
    inputs: &GateInputs<S, W>,
    reset: &[R],
    geometry: &Geometry,
    at: &Place,
    #[comptime] tail: bool,
    #[comptime] config: Config,
) {
    let order = comptime!(forward_order(tail, config));
    #[unroll]
    for u in 0..comptime!(config.len) {
        fill_step::<S, R, W>(tile, inputs, reset, geometry, at, u, order, config);
    }
}

/// Reads step `u` of the tile.
#[cube]
fn fill_step<S: Numeric, R: Numeric, W: Size>(
    tile: &mut InputTile<S, W>,
    inputs: &GateInputs<S, W>,
    reset: &[R],
    geometry: &Geometry,
    at: &Place,
    #[comptime] u: usize,
    #[comptime] order: Order,
    #[comptime] config: Config,
) {
    read_inputs::<S, W>(tile, inputs, geometry, at, u, order, true, config);
    if comptime!(config.reset) {
        read_reset::<S, R, W>(tile, reset, geometry, at, u, order);
    }
}

fn forward_order(tail: bool, config: Config) -> Order {
    Order {
        tail,
        down: config.reverse,
    }
}

/// The coefficients of step `u`, from its inputs.
#[cube]
fn computed<S: Numeric, W: Size, N: Size>(
    tile: &InputTile<S, W>,
    #[comptime] u: usize,
    #[comptime] config: Config,
) -> Affine<N> {
    let (x0, x1, x2) = widened::<S, W, N>(tile, u, true, config);
    coefficients::<N>(x0, x1, x2, config.gate, config.math())
}

/// The coefficients of step `u`.
#[cube]
fn step<S: Numeric, W: Size, N: Size>(
    tile: &ForwardTile<S, W, N>,
    #[comptime] u: usize,
    #[comptime] config: Config,
) -> Affine<N> {
    if comptime!(config.registers == Registers::Inputs) {
        computed::<S, W, N>(&tile.inputs, u, config)
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
            let cut = tile.inputs.cut[u] != 0;
            run_a = select(cut, zero, run_a);
            run_h = select(cut, zero, run_h);
            run_cut |= tile.inputs.cut[u];
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
    at: &Place,
    #[comptime] config: Config,
) -> Vector<f32, N> {
    let mut last = state;
    if at.inside {
        if at.first + comptime!(config.len) <= geometry.steps {
            last = write_forward::<S, W, N>(tile, state, h, geometry, at, false, config);
        } else {
            last = write_forward::<S, W, N>(tile, state, h, geometry, at, true, config);
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
    at: &Place,
    #[comptime] tail: bool,
    #[comptime] config: Config,
) -> Vector<f32, N> {
    let mut state = state;
    let cols = geometry.cols;
    let steps = geometry.steps;
    let order = comptime!(forward_order(tail, config));
    let base = at.batch * steps * cols + at.col;
    #[unroll]
    for u in 0..comptime!(config.len) {
        let step = step::<S, W, N>(tile, u, config);
        state = taken::<S, W, N>(&tile.inputs, step, state, u, config);
        if comptime!(tail) {
            if at.first + u < steps {
                h[element(base, cols, at.first, u, steps, order)] =
                    narrow::<S, W, N>(state, config.storage);
            }
        } else {
            h[element(base, cols, at.first, u, steps, order)] =
                narrow::<S, W, N>(state, config.storage);
        }
    }
    state
}

/// The state after step `u`.
#[cube]
fn taken<S: Numeric, W: Size, N: Size>(
    tile: &InputTile<S, W>,
    step: Affine<N>,
    state: Vector<f32, N>,
    #[comptime] u: usize,
    #[comptime] config: Config,
) -> Vector<f32, N> {
    let mut state = state;
    if comptime!(config.reset) {
        state = select(tile.cut[u] != 0, Vector::new(0.0f32), state);
    }
    fma(step.a, state, step.b)
}

/// Runs the state through a tile of inputs, and reads the tile after it into the same registers: each step as soon as the one
/// before it in them has been taken, so that `len` steps are always on their way. Both tiles and the lane are inside.
#[cube]
pub(crate) fn advance_forward<S: Numeric, R: Numeric, W: Size, N: Size>(
    tile: &mut ForwardTile<S, W, N>,
    state: Vector<f32, N>,
    inputs: &GateInputs<S, W>,
    reset: &[R],
    h: &mut [Vector<S, W>],
    geometry: &Geometry,
    at: &Place,
    #[comptime] config: Config,
) -> Vector<f32, N> {
    let order = comptime!(forward_order(false, config));
    let next = next_place(at, config);
    let (cols, steps) = (geometry.cols, geometry.steps);
    let base = at.batch * steps * cols + at.col;
    let mut state = state;
    #[unroll]
    for u in 0..comptime!(config.len) {
        let step = computed::<S, W, N>(&tile.inputs, u, config);
        state = taken::<S, W, N>(&tile.inputs, step, state, u, config);
        h[element(base, cols, at.first, u, steps, order)] =
            narrow::<S, W, N>(state, config.storage);
        fill_step::<S, R, W>(
            &mut tile.inputs,
            inputs,
            reset,
            geometry,
            &next,
            u,
            order,
            config,
        );
    }
    state
}
