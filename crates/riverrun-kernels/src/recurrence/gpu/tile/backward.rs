//! Steps of the backward pass, in its own order: from the last one on.

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

#[cube]
pub(crate) fn load_backward<S: Numeric, R: Numeric, W: Size>(
    inputs: &GateInputs<S, W>,
    states: &StateGradients<S, W>,
    reset: &[R],
    geometry: &Geometry,
    at: &Place,
    #[comptime] config: Config,
) -> BackwardTile<S, W> {
    let len = comptime!(config.len);
    let mut tile = BackwardTile::<S, W> {
        inputs: empty_inputs::<S, W>(len),
        g: Array::<Vector<S, W>>::new(len),
        h_prev: Array::<Vector<S, W>>::new(len),
    };
    if at.first + len < geometry.steps {
        fill_backward::<S, R, W>(
            &mut tile, inputs, states, reset, geometry, at, false, config,
        );
    } else {
        fill_backward::<S, R, W>(&mut tile, inputs, states, reset, geometry, at, true, config);
    }
    tile
}

/// Loads a tile; with `tail`, it may hold the first step of the forward order, whose previous state is `h0`, and
/// steps before that, which read the first row again.
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

/// Reads step `u` of the tile.
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
    let cols = geometry.cols;
    let steps = geometry.steps;
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
    if comptime!(tail) {
        if at.first + u + 1 < steps {
            let before = row_of(at.first + u + 1, steps, order.down);
            tile.h_prev[u] = states.h[base + before * cols];
        } else if comptime!(config.h0) {
            tile.h_prev[u] = states.h0[at.batch * cols + at.col];
        } else {
            tile.h_prev[u] = Vector::new(S::from_int(0));
        }
    } else {
        let before = comptime!(u + 1);
        tile.h_prev[u] = states.h[element(base, cols, at.first, before, steps, order)];
    }
    if comptime!(config.reset) {
        read_reset::<S, R, W>(&mut tile.inputs, reset, geometry, at, u, order);
    }
}

/// Steps are counted from the last one.
fn backward_order(tail: bool, config: Config) -> Order {
    Order {
        tail,
        down: !config.reverse,
    }
}

#[cube]
pub(crate) fn reduce_backward<S: Numeric, W: Size, N: Size>(
    tile: &BackwardTile<S, W>,
    geometry: &Geometry,
    first: usize,
    #[comptime] config: Config,
) -> Run<N> {
    let mut a = Vector::<f32, N>::new(1.0f32);
    let mut h = Vector::<f32, N>::new(0.0f32);
    let mut cut = 0u32;
    if first + comptime!(config.len) <= geometry.steps {
        #[unroll]
        for u in 0..comptime!(config.len) {
            let run = then_back::<S, W, N>(tile, &Run::<N> { a, h, cut }, u, config);
            a = run.a;
            h = run.h;
            cut = run.cut;
        }
    } else {
        #[unroll]
        for u in 0..comptime!(config.len) {
            if first + u < geometry.steps {
                let run = then_back::<S, W, N>(tile, &Run::<N> { a, h, cut }, u, config);
                a = run.a;
                h = run.h;
                cut = run.cut;
            }
        }
    }
    Run::<N> { a, h, cut }
}

/// The run, then step `u`: `S -> a (g + S)`.
#[cube]
fn then_back<S: Numeric, W: Size, N: Size>(
    tile: &BackwardTile<S, W>,
    run: &Run<N>,
    #[comptime] u: usize,
    #[comptime] config: Config,
) -> Run<N> {
    let second = comptime!(config.backward_needs_p1());
    let (x0, x1, x2) = widened::<S, W, N>(&tile.inputs, u, second, config);
    let a = coefficients::<N>(x0, x1, x2, config.gate, config.math()).a;
    let mut run_a = run.a * a;
    let mut run_h = a * (widen::<S, W, N>(tile.g[u], config.storage) + run.h);
    let mut run_cut = run.cut;
    if comptime!(config.reset) {
        let zero = Vector::<f32, N>::new(0.0f32);
        let cut = tile.inputs.cut[u] != 0;
        run_a = select(cut, zero, run_a);
        run_h = select(cut, zero, run_h);
        run_cut |= tile.inputs.cut[u];
    }
    Run::<N> {
        a: run_a,
        h: run_h,
        cut: run_cut,
    }
}

/// Runs the state backwards through the tile, writing the input gradients; returns the last state, if the lane is
/// inside.
#[cube]
pub(crate) fn apply_backward<S: Numeric, W: Size, N: Size>(
    tile: &BackwardTile<S, W>,
    state: Vector<f32, N>,
    outputs: &mut InputGradients<S, W>,
    geometry: &Geometry,
    at: &Place,
    #[comptime] config: Config,
) -> Vector<f32, N> {
    let mut state = state;
    if at.inside {
        if at.first + comptime!(config.len) <= geometry.steps {
            #[unroll]
            for u in 0..comptime!(config.len) {
                state = write_backward::<S, W, N>(
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
            }
        } else {
            #[unroll]
            for u in 0..comptime!(config.len) {
                if at.first + u < geometry.steps {
                    state = write_backward::<S, W, N>(
                        &tile.inputs,
                        tile.g[u],
                        tile.h_prev[u],
                        state,
                        outputs,
                        geometry,
                        at,
                        u,
                        true,
                        config,
                    );
                }
            }
        }
    }
    state
}

/// Runs the state backwards through a tile, and reads the tile after it into the same registers, as [`advance_forward`] does.
/// Both tiles and the lane are inside, and the tile after it does not hold the first step of the forward order.
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
        state = write_backward::<S, W, N>(
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

/// Step `u`: writes its gradients, returns the state before it.
#[cube]
fn write_backward<S: Numeric, W: Size, N: Size>(
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
    let mut h_prev = widen::<S, W, N>(h_prev, config.storage);
    if comptime!(config.reset) {
        // Here and not where it is read: the reading waits for nothing.
        h_prev = select(tile.cut[u] != 0, Vector::new(0.0f32), h_prev);
    }
    let grads = gradients::<N>(x0, x1, x2, h_prev, d, config.gate, config.math());
    let mut state = grads.a * d;
    if comptime!(config.reset) {
        state = select(tile.cut[u] != 0, Vector::new(0.0f32), state);
    }
    let inputs = comptime!(if config.packed {
        config.gate.inputs()
    } else {
        1
    });
    let width = geometry.cols * inputs;
    let steps = geometry.steps;
    let base = at.batch * steps * width + at.col;
    let order = comptime!(backward_order(tail, config));
    let i = element(base, width, at.first, u, steps, order);
    outputs.d0[i] = narrow::<S, W, N>(grads.d0, config.storage);
    if comptime!(config.packed) {
        outputs.d0[i + geometry.cols] = narrow::<S, W, N>(grads.d1, config.storage);
        if comptime!(config.needs_p2()) {
            outputs.d0[i + 2 * geometry.cols] = narrow::<S, W, N>(grads.d2, config.storage);
        }
    } else {
        outputs.d1[i] = narrow::<S, W, N>(grads.d1, config.storage);
    }
    state
}
