//! Steps held in registers: loading them, reducing them to one affine map, and applying a state to them.
//!
//! Both passes are one recurrence over a state `S`, in the order of their own steps `s = 0, 1, …`:
//! forward `S <- a S + b` and the output is the new `S`; backward (`s` counts from the last step)
//! `D = g + S`, `S <- a D`, and the outputs are the input gradients made of `D`. So everything between
//! the registers and the state (chunks, hand-over) is shared.

use cubecl::prelude::*;

use super::gate::{Affine, coefficients, from_part, gradients, part};
use super::storage::{Storage, narrow, widen};
use super::tuning::Keep;
use crate::recurrence::Gate;

/// Where the elements lie. Everything counts in vectors of channels.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct Geometry {
    /// Vectors of a row, `D / N`.
    pub cols: usize,
    /// Steps, `T`.
    pub steps: usize,
    /// First element, stride of a sequence and stride of a step of each input.
    pub offset_0: usize,
    pub batch_0: usize,
    pub step_0: usize,
    pub offset_1: usize,
    pub batch_1: usize,
    pub step_1: usize,
    pub offset_2: usize,
    pub batch_2: usize,
    pub step_2: usize,
}

/// What changes the generated code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Config {
    pub gate: Gate,
    pub reverse: bool,
    /// All gate inputs (and their gradients) live in one `[B, T, G·D]` buffer.
    pub packed: bool,
    /// A state to start from: `h0` forward, `∂L/∂h_last` backward.
    pub initial: bool,
    /// Backward only: `h0` exists.
    pub h0: bool,
    pub reset: bool,
    /// Steps a unit keeps in registers.
    pub len: usize,
    /// How it keeps them.
    pub storage: Storage,
    /// What of a step it keeps, forward.
    pub keep: Keep,
    /// The device runs PTX.
    pub ptx: bool,
}

impl Config {
    pub(crate) fn needs_p1(&self, backward: bool) -> bool {
        !(backward && matches!(self.gate, Gate::Raw | Gate::Sigmoid))
    }

    pub(crate) fn needs_p2(&self) -> bool {
        self.gate.inputs() == 3
    }
}

/// The affine map of a run of steps: `S -> a S + h`, with `a` replaced by 0 for good where the run holds
/// a reset (`cut`), so that a state that is not finite cannot pass it.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Run<N: Size> {
    pub a: Vector<f32, N>,
    pub h: Vector<f32, N>,
    pub cut: u32,
}

/// The state after the run.
#[cube]
pub(crate) fn run_through<N: Size>(run: &Run<N>, state: Vector<f32, N>) -> Vector<f32, N> {
    select(run.cut != 0, run.h, fma(run.a, state, run.h))
}

/// `first`, then `second`.
#[cube]
pub(crate) fn run_then<N: Size>(first: &Run<N>, second: &Run<N>) -> Run<N> {
    Run::<N> {
        a: select(second.cut != 0, second.a, first.a * second.a),
        h: run_through::<N>(second, first.h),
        cut: first.cut | second.cut,
    }
}

/// The row of the step `t` of the forward order.
#[cube]
fn row_of(t: usize, steps: usize, #[comptime] reverse: bool) -> usize {
    if comptime!(reverse) { steps - 1 - t } else { t }
}

/// Forward: `len` steps in registers, see [`Keep`].
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
    if comptime!(config.keep == Keep::Coefficients) {
        #[unroll]
        for u in 0..len {
            let step = computed::<S, W, N>(&tile, u, config);
            tile.a[u] = step.a;
            tile.b[u] = step.b;
        }
    } else if comptime!(config.keep == Keep::Part) {
        #[unroll]
        for u in 0..len {
            tile.a[u] = part::<N>(widen::<S, W, N>(tile.p0[u], config.storage), config.ptx);
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
    #[unroll]
    for u in 0..comptime!(config.len) {
        let mut t = first + u;
        if comptime!(tail) {
            t = t.min(geometry.steps - 1);
        }
        let row = row_of(t, geometry.steps, config.reverse);
        tile.p0[u] = in0[base_0 + row * geometry.step_0];
        tile.p1[u] = in1[base_1 + row * geometry.step_1];
        if comptime!(config.needs_p2()) {
            tile.p2[u] = in2[base_2 + row * geometry.step_2];
        }
        if comptime!(config.reset) {
            tile.cut[u] = u32::cast_from(reset[batch * geometry.steps + row] != R::from_int(0));
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
    if comptime!(config.keep == Keep::Inputs) {
        computed::<S, W, N>(tile, u, config)
    } else if comptime!(config.keep == Keep::Part) {
        let x1 = widen::<S, W, N>(tile.p1[u], config.storage);
        from_part::<N>(tile.a[u], x1, config.gate, config.ptx)
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
            run_cut = run_cut | tile.cut[u];
        }
        run_h = fma(at.a, run_h, at.b);
        run_a = run_a * at.a;
    }
    Run::<N> {
        a: run_a,
        h: run_h,
        cut: run_cut,
    }
}

/// Runs the state through the tile, writing it after each step; returns the last.
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
    let mut state = state;
    let base = batch * geometry.steps * geometry.cols + col;
    #[unroll]
    for u in 0..comptime!(config.len) {
        if comptime!(config.reset) {
            state = select(tile.cut[u] != 0, Vector::new(0.0f32), state);
        }
        let at = step::<S, W, N>(tile, u, config);
        state = fma(at.a, state, at.b);
        let t = first + u;
        if inside && t < geometry.steps {
            h[base + row_of(t, geometry.steps, config.reverse) * geometry.cols] =
                narrow::<S, W, N>(state, config.storage);
        }
    }
    state
}

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
    let last = geometry.steps - 1;
    #[unroll]
    for u in 0..comptime!(config.len) {
        let mut s = first + u;
        if comptime!(tail) {
            s = s.min(last);
        }
        let t = last - s;
        let row = row_of(t, geometry.steps, config.reverse);
        tile.p0[u] = in0[base_0 + row * geometry.step_0];
        if comptime!(config.needs_p1(true)) {
            tile.p1[u] = in1[base_1 + row * geometry.step_1];
        }
        if comptime!(config.needs_p2()) {
            tile.p2[u] = in2[base_2 + row * geometry.step_2];
        }
        tile.g[u] = d_h[base_h + row * geometry.cols];
        if comptime!(tail) {
            if t > 0 {
                let before = row_of(t - 1, geometry.steps, config.reverse);
                tile.h_prev[u] = h[base_h + before * geometry.cols];
            } else if comptime!(config.h0) {
                tile.h_prev[u] = h0[batch * geometry.cols + col];
            } else {
                tile.h_prev[u] = Vector::new(S::from_int(0));
            }
        } else {
            let before = row_of(t - 1, geometry.steps, config.reverse);
            tile.h_prev[u] = h[base_h + before * geometry.cols];
        }
        if comptime!(config.reset) {
            tile.cut[u] = u32::cast_from(reset[batch * geometry.steps + row] != R::from_int(0));
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
    let mut run_a = Vector::<f32, N>::new(1.0f32);
    let mut run_h = Vector::<f32, N>::new(0.0f32);
    let mut run_cut = 0u32;
    #[unroll]
    for u in 0..comptime!(config.len) {
        let (x0, x1, x2) = widened::<S, W, N>(tile, u, config);
        let a = coefficients::<N>(x0, x1, x2, config.gate, config.ptx).a;
        if first + u < geometry.steps {
            run_h = a * (widen::<S, W, N>(tile.g[u], config.storage) + run_h);
            run_a = run_a * a;
            if comptime!(config.reset) {
                let zero = Vector::<f32, N>::new(0.0f32);
                let cut = tile.cut[u] != 0;
                run_a = select(cut, zero, run_a);
                run_h = select(cut, zero, run_h);
                run_cut = run_cut | tile.cut[u];
            }
        }
    }
    Run::<N> {
        a: run_a,
        h: run_h,
        cut: run_cut,
    }
}

/// Runs the state backwards through the tile, writing the input gradients; returns the last state.
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
    let inputs = comptime!(if config.packed {
        config.gate.inputs()
    } else {
        1
    });
    let width = geometry.cols * inputs;
    let base = batch * geometry.steps * width + col;
    let last = geometry.steps - 1;
    #[unroll]
    for u in 0..comptime!(config.len) {
        if first + u < geometry.steps {
            let (x0, x1, x2) = widened::<S, W, N>(tile, u, config);
            let d = widen::<S, W, N>(tile.g[u], config.storage) + state;
            let h_prev = widen::<S, W, N>(tile.h_prev[u], config.storage);
            let grads = gradients::<N>(x0, x1, x2, h_prev, d, config.gate, config.ptx);
            state = grads.a * d;
            if comptime!(config.reset) {
                state = select(tile.cut[u] != 0, Vector::new(0.0f32), state);
            }
            if inside {
                let i = base + row_of(last - (first + u), geometry.steps, config.reverse) * width;
                d0[i] = narrow::<S, W, N>(grads.d0, config.storage);
                if comptime!(config.packed) {
                    d0[i + geometry.cols] = narrow::<S, W, N>(grads.d1, config.storage);
                    if comptime!(config.needs_p2()) {
                        d0[i + 2 * geometry.cols] = narrow::<S, W, N>(grads.d2, config.storage);
                    }
                } else {
                    d1[i] = narrow::<S, W, N>(grads.d1, config.storage);
                }
            }
        }
    }
    state
}
