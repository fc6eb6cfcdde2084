//! Steps of the backward pass, in its own order: from the last one on.

// A length that is known when the kernel is compiled leaves the comparison out.
#![allow(clippy::if_same_then_else)]

use cubecl::prelude::*;

use super::super::buffers::{InputGradients, StateGradients};
use super::*;
use crate::gpu::storage::narrow;
use crate::recurrence::gates::{coefficients, gradients};

/// Backward: what `len` steps need, in registers and in the storage type; gates are computed again.
#[derive(CubeType)]
pub(crate) struct BackwardTile<S: Numeric, W: Size> {
    inputs: InputTile<S, W>,
    g: Array<Vector<S, W>>,
    h_prev: Array<Vector<S, W>>,
}

/// Loads a tile, which reaches past the end only where `tail` says so. Steps past the end read the first row again.
#[cube]
pub(crate) fn load_backward<S: Numeric, R: Numeric, W: Size>(
    inputs: &GateInputs<S, W>,
    states: &StateGradients<S, W>,
    reset: &[R],
    geometry: &Geometry,
    at: &Place,
    #[comptime] tail: bool,
    #[comptime] config: Config,
) -> BackwardTile<S, W> {
    let len = comptime!(config.len);
    let mut tile = BackwardTile::<S, W> {
        inputs: empty_inputs::<S, W>(len),
        g: Array::<Vector<S, W>>::new(len),
        h_prev: Array::<Vector<S, W>>::new(len),
    };
    if comptime!(!tail) {
        fill_backward::<S, R, W>(
            &mut tile, inputs, states, reset, geometry, at, false, config,
        );
    } else if at.first + len <= geometry.steps {
        fill_backward::<S, R, W>(
            &mut tile, inputs, states, reset, geometry, at, false, config,
        );
    } else {
        fill_backward::<S, R, W>(&mut tile, inputs, states, reset, geometry, at, true, config);
    }
    tile
}

#[cube]
fn fill_backward<S: Numeric, R: Numeric, W: Size>(
    tile: &mut BackwardTile<S, W>,
    inputs: &GateInputs<S, W>,
    states: &StateGradients<S, W>,
    reset: &[R],
    geometry: &Geometry,
    at: &Place,
    #[comptime] tail: bool,
    #[comptime] config: Config,
) {
    #[unroll]
    for u in 0..comptime!(config.len) {
        fill_step::<S, R, W>(tile, inputs, states, reset, geometry, at, u, tail, config);
    }
}

/// Reads step `u` of the tile. The state before the first step of the forward order is `h0`; that step is the last of its tile,
/// or in the tail.
#[cube]
fn fill_step<S: Numeric, R: Numeric, W: Size>(
    tile: &mut BackwardTile<S, W>,
    inputs: &GateInputs<S, W>,
    states: &StateGradients<S, W>,
    reset: &[R],
    geometry: &Geometry,
    at: &Place,
    #[comptime] u: usize,
    #[comptime] tail: bool,
    #[comptime] config: Config,
) {
    let (cols, steps) = (geometry.cols, geometry.steps);
    let base = at.batch * steps * cols + at.col;
    let order = comptime!(backward_order(tail, config));
    let second = comptime!(config.backward_needs_p1());
    read_inputs::<S, W>(
        &mut tile.inputs,
        inputs,
        geometry,
        at,
        u,
        order,
        second,
        config,
    );
    tile.g[u] = states.d_h[element(base, cols, at.first, u, steps, order)];
    let before = comptime!(u + 1);
    if comptime!(tail || before == config.len) {
        if at.first + before < steps {
            let row = row_of(at.first + before, steps, order.down);
            tile.h_prev[u] = states.h[base + row * cols];
        } else if comptime!(config.h0) {
            tile.h_prev[u] = states.h0[at.batch * cols + at.col];
        } else {
            tile.h_prev[u] = Vector::new(S::from_int(0));
        }
    } else {
        tile.h_prev[u] = states.h[element(base, cols, at.first, before, steps, order)];
    }
    if comptime!(config.reset) {
        read_reset::<S, R, W>(&mut tile.inputs, reset, geometry, at, u, order);
        if tile.inputs.cut[u] != 0 {
            tile.h_prev[u] = Vector::new(S::from_int(0));
        }
    }
}

/// Steps are counted from the last one.
fn backward_order(tail: bool, config: Config) -> Order {
    Order {
        tail,
        down: !config.reverse,
    }
}

/// Nothing looks at the state after a tile that reaches past the end.
#[cube]
pub(crate) fn reduce_backward<S: Numeric, W: Size, N: Size>(
    tile: &BackwardTile<S, W>,
    #[comptime] config: Config,
) -> Run<N> {
    let second = comptime!(config.backward_needs_p1());
    let mut run_a = Vector::<f32, N>::new(1.0f32);
    let mut run_h = Vector::<f32, N>::new(0.0f32);
    let mut run_cut = 0u32;
    #[unroll]
    for u in 0..comptime!(config.len) {
        let (x0, x1, x2) = widened::<S, W, N>(&tile.inputs, u, second, config);
        let a = coefficients::<N>(x0, x1, x2, config.gate, config.math()).a;
        // `S -> a (g + S)`.
        run_a *= a;
        run_h = a * (widen::<S, W, N>(tile.g[u], config.storage) + run_h);
        if comptime!(config.reset) {
            let zero = Vector::<f32, N>::new(0.0f32);
            let cut = tile.inputs.cut[u] != 0;
            run_a = select(cut, zero, run_a);
            run_h = select(cut, zero, run_h);
            run_cut |= tile.inputs.cut[u];
        }
    }
    Run::<N> {
        a: run_a,
        h: run_h,
        cut: run_cut,
    }
}

/// Runs the state backwards through the tile, writing the input gradients; returns the last state, if the lane is
/// inside. Steps past the end keep it.
#[cube]
pub(crate) fn apply_backward<S: Numeric, W: Size, N: Size>(
    tile: &BackwardTile<S, W>,
    state: Vector<f32, N>,
    outputs: &mut InputGradients<S, W>,
    geometry: &Geometry,
    at: &Place,
    #[comptime] tail: bool,
    #[comptime] config: Config,
) -> Vector<f32, N> {
    let mut state = state;
    if at.inside {
        #[unroll]
        for u in 0..comptime!(config.len) {
            state = write_step::<S, W, N>(
                &tile.inputs,
                tile.g[u],
                tile.h_prev[u],
                state,
                outputs,
                geometry,
                at,
                u,
                tail,
                config,
            );
        }
    }
    state
}

/// Runs the state through a tile that lies inside, and reads the tile after it into the same registers, as
/// [`advance_forward`] does.
#[cube]
pub(crate) fn advance_backward<S: Numeric, R: Numeric, W: Size, N: Size>(
    tile: &mut BackwardTile<S, W>,
    state: Vector<f32, N>,
    inputs: &GateInputs<S, W>,
    states: &StateGradients<S, W>,
    reset: &[R],
    outputs: &mut InputGradients<S, W>,
    geometry: &Geometry,
    at: &Place,
    #[comptime] config: Config,
) -> Vector<f32, N> {
    let next = next_place(at, config);
    let mut state = state;
    #[unroll]
    for u in 0..comptime!(config.len) {
        state = write_step::<S, W, N>(
            &tile.inputs,
            tile.g[u],
            tile.h_prev[u],
            state,
            outputs,
            geometry,
            at,
            u,
            false,
            config,
        );
        fill_step::<S, R, W>(
            tile, inputs, states, reset, geometry, &next, u, false, config,
        );
    }
    state
}

/// Step `u`: writes its gradients, returns the state before it; past the end, neither.
#[cube]
fn write_step<S: Numeric, W: Size, N: Size>(
    tile: &InputTile<S, W>,
    g: Vector<S, W>,
    h_prev: Vector<S, W>,
    state: Vector<f32, N>,
    outputs: &mut InputGradients<S, W>,
    geometry: &Geometry,
    at: &Place,
    #[comptime] u: usize,
    #[comptime] tail: bool,
    #[comptime] config: Config,
) -> Vector<f32, N> {
    let second = comptime!(config.backward_needs_p1());
    let (x0, x1, x2) = widened::<S, W, N>(tile, u, second, config);
    let d = widen::<S, W, N>(g, config.storage) + state;
    let h_prev = widen::<S, W, N>(h_prev, config.storage);
    let grads = gradients::<N>(x0, x1, x2, h_prev, d, config.gate, config.math());
    let mut after = grads.a * d;
    if comptime!(config.reset) {
        after = select(tile.cut[u] != 0, Vector::new(0.0f32), after);
    }
    let inputs = comptime!(if config.packed {
        config.gate.inputs()
    } else {
        1
    });
    let width = geometry.cols * inputs;
    let steps = geometry.steps;
    let base = at.batch * steps * width + at.col;
    let order = comptime!(backward_order(false, config));
    let i = element(base, width, at.first, u, steps, order);
    let d0 = narrow::<S, W, N>(grads.d0, config.storage);
    let d1 = narrow::<S, W, N>(grads.d1, config.storage);
    let d2 = narrow::<S, W, N>(grads.d2, config.storage);
    if comptime!(tail) {
        let exists = at.first + u < steps;
        if exists {
            write_gradients::<S, W>(outputs, i, geometry.cols, d0, d1, d2, config);
        }
        select(exists, after, state)
    } else {
        write_gradients::<S, W>(outputs, i, geometry.cols, d0, d1, d2, config);
        after
    }
}

#[cube]
fn write_gradients<S: Numeric, W: Size>(
    outputs: &mut InputGradients<S, W>,
    i: usize,
    cols: usize,
    d0: Vector<S, W>,
    d1: Vector<S, W>,
    d2: Vector<S, W>,
    #[comptime] config: Config,
) {
    outputs.d0[i] = d0;
    if comptime!(config.packed) {
        outputs.d0[i + cols] = d1;
        if comptime!(config.needs_p2()) {
            outputs.d0[i + 2 * cols] = d2;
        }
    } else {
        outputs.d1[i] = d1;
    }
}
