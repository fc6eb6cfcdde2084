//! Steps of the backward pass, in its own order: from the last one on.

use cubecl::prelude::*;

use super::*;
use crate::gpu::storage::{narrow, widen};
use crate::recurrence::gates::{coefficients, gradients};

/// Backward: what `len` steps need, in registers and in the storage type; gates are computed again.
#[derive(CubeType)]
pub(crate) struct BackwardTile<S: Numeric, W: Size> {
    p0: Array<Vector<S, W>>,
    p1: Array<Vector<S, W>>,
    p2: Array<Vector<S, W>>,
    g: Array<Vector<S, W>>,
    h_prev: Array<Vector<S, W>>,
    cut: Array<u32>,
}

#[cube]
pub(crate) fn load_backward<S: Numeric, R: Numeric, W: Size>(
    in0: &[Vector<S, W>],
    in1: &[Vector<S, W>],
    in2: &[Vector<S, W>],
    h: &[Vector<S, W>],
    h0: &[Vector<S, W>],
    d_h: &[Vector<S, W>],
    reset: &[R],
    geometry: &Geometry,
    batch: usize,
    col: usize,
    first: usize,
    #[comptime] config: Config,
) -> BackwardTile<S, W> {
    let len = comptime!(config.len);
    let mut tile = BackwardTile::<S, W> {
        p0: Array::<Vector<S, W>>::new(len),
        p1: Array::<Vector<S, W>>::new(len),
        p2: Array::<Vector<S, W>>::new(len),
        g: Array::<Vector<S, W>>::new(len),
        h_prev: Array::<Vector<S, W>>::new(len),
        cut: Array::<u32>::new(len),
    };
    if first + len < geometry.steps {
        fill_backward::<S, R, W>(
            &mut tile, in0, in1, in2, h, h0, d_h, reset, geometry, batch, col, first, false, config,
        );
    } else {
        fill_backward::<S, R, W>(
            &mut tile, in0, in1, in2, h, h0, d_h, reset, geometry, batch, col, first, true, config,
        );
    }
    tile
}

/// Loads a tile; with `tail`, it may hold the first step of the forward order, whose previous state is `h0`, and
/// steps before that, which read the first row again.
#[cube]
fn fill_backward<S: Numeric, R: Numeric, W: Size>(
    tile: &mut BackwardTile<S, W>,
    in0: &[Vector<S, W>],
    in1: &[Vector<S, W>],
    in2: &[Vector<S, W>],
    h: &[Vector<S, W>],
    h0: &[Vector<S, W>],
    d_h: &[Vector<S, W>],
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
    let base_h = batch * geometry.steps * geometry.cols + col;
    let cols = geometry.cols;
    let steps = geometry.steps;
    // Steps are counted from the last one.
    let down = comptime!(!config.reverse);
    #[unroll]
    for u in 0..comptime!(config.len) {
        tile.p0[u] = in0[element(base_0, geometry.step_0, first, u, steps, tail, down)];
        if comptime!(config.needs_p1(true)) {
            tile.p1[u] = in1[element(base_1, geometry.step_1, first, u, steps, tail, down)];
        }
        if comptime!(config.needs_p2()) {
            tile.p2[u] = in2[element(base_2, geometry.step_2, first, u, steps, tail, down)];
        }
        tile.g[u] = d_h[element(base_h, cols, first, u, steps, tail, down)];
        if comptime!(tail) {
            if first + u + 1 < steps {
                let before = row_of(first + u + 1, steps, down);
                tile.h_prev[u] = h[base_h + before * cols];
            } else if comptime!(config.h0) {
                tile.h_prev[u] = h0[batch * cols + col];
            } else {
                tile.h_prev[u] = Vector::new(S::from_int(0));
            }
        } else {
            let before = comptime!(u + 1);
            tile.h_prev[u] = h[element(base_h, cols, first, before, steps, false, down)];
        }
        if comptime!(config.reset) {
            let at = element(batch * steps, 1, first, u, steps, tail, down);
            tile.cut[u] = u32::cast_from(reset[at] != R::from_int(0));
            if tile.cut[u] != 0 {
                tile.h_prev[u] = Vector::new(S::from_int(0));
            }
        }
    }
}

/// The inputs of step `u` of the tile, widened.
#[cube]
fn widened<S: Numeric, W: Size, N: Size>(
    tile: &BackwardTile<S, W>,
    #[comptime] u: usize,
    #[comptime] config: Config,
) -> (Vector<f32, N>, Vector<f32, N>, Vector<f32, N>) {
    let x0 = widen::<S, W, N>(tile.p0[u], config.storage);
    let mut x1 = x0;
    if comptime!(config.needs_p1(true)) {
        x1 = widen::<S, W, N>(tile.p1[u], config.storage);
    }
    let mut x2 = x0;
    if comptime!(config.needs_p2()) {
        x2 = widen::<S, W, N>(tile.p2[u], config.storage);
    }
    (x0, x1, x2)
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
    let (x0, x1, x2) = widened::<S, W, N>(tile, u, config);
    let a = coefficients::<N>(x0, x1, x2, config.gate, config.ptx).a;
    let mut run_a = run.a * a;
    let mut run_h = a * (widen::<S, W, N>(tile.g[u], config.storage) + run.h);
    let mut run_cut = run.cut;
    if comptime!(config.reset) {
        let zero = Vector::<f32, N>::new(0.0f32);
        let cut = tile.cut[u] != 0;
        run_a = select(cut, zero, run_a);
        run_h = select(cut, zero, run_h);
        run_cut |= tile.cut[u];
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
    d0: &mut [Vector<S, W>],
    d1: &mut [Vector<S, W>],
    geometry: &Geometry,
    batch: usize,
    col: usize,
    first: usize,
    inside: bool,
    #[comptime] config: Config,
) -> Vector<f32, N> {
    let mut state = state;
    if inside {
        if first + comptime!(config.len) <= geometry.steps {
            #[unroll]
            for u in 0..comptime!(config.len) {
                state = write_backward::<S, W, N>(
                    tile, state, d0, d1, geometry, batch, col, first, u, false, config,
                );
            }
        } else {
            #[unroll]
            for u in 0..comptime!(config.len) {
                if first + u < geometry.steps {
                    state = write_backward::<S, W, N>(
                        tile, state, d0, d1, geometry, batch, col, first, u, true, config,
                    );
                }
            }
        }
    }
    state
}

/// Step `u`: writes its gradients, returns the state before it.
#[cube]
fn write_backward<S: Numeric, W: Size, N: Size>(
    tile: &BackwardTile<S, W>,
    state: Vector<f32, N>,
    d0: &mut [Vector<S, W>],
    d1: &mut [Vector<S, W>],
    geometry: &Geometry,
    batch: usize,
    col: usize,
    first: usize,
    #[comptime] u: usize,
    #[comptime] tail: bool,
    #[comptime] config: Config,
) -> Vector<f32, N> {
    let (x0, x1, x2) = widened::<S, W, N>(tile, u, config);
    let d = widen::<S, W, N>(tile.g[u], config.storage) + state;
    let h_prev = widen::<S, W, N>(tile.h_prev[u], config.storage);
    let grads = gradients::<N>(x0, x1, x2, h_prev, d, config.gate, config.ptx);
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
    let base = batch * steps * width + col;
    let down = comptime!(!config.reverse);
    let i = element(base, width, first, u, steps, tail, down);
    d0[i] = narrow::<S, W, N>(grads.d0, config.storage);
    if comptime!(config.packed) {
        d0[i + geometry.cols] = narrow::<S, W, N>(grads.d1, config.storage);
        if comptime!(config.needs_p2()) {
            d0[i + 2 * geometry.cols] = narrow::<S, W, N>(grads.d2, config.storage);
        }
    } else {
        d1[i] = narrow::<S, W, N>(grads.d1, config.storage);
    }
    state
}
