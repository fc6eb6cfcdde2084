//! Steps held in registers: loading them, reducing them to one affine map, and applying a state to them.
//!
//! Both passes are one recurrence over a state `S`, in the order of their own steps `s = 0, 1, …`:
//! forward `S <- a S + b` and the output is the new `S`; backward (`s` counts from the last step)
//! `D = g + S`, `S <- a D`, and the outputs are the input gradients made of `D`. So everything between
//! the registers and the state (chunks, hand-over) is shared.

mod backward;
mod forward;

pub(crate) use backward::{advance_backward, apply_backward, load_backward, reduce_backward};
pub(crate) use forward::{advance_forward, apply_forward, load_forward, reduce_forward};

use cubecl::prelude::*;

use super::buffers::GateInputs;
use super::storage::{Storage, widen};
use super::tuning::Registers;
use crate::recurrence::Gate;
use crate::recurrence::gates::gpu::Math;

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

/// Parameters of the generated code.
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
    /// Steps a thread keeps in registers.
    pub len: usize,
    /// How it keeps them.
    pub storage: Storage,
    /// The values of a step that the forward pass keeps.
    pub registers: Registers,
    /// The device runs PTX.
    pub ptx: bool,
}

impl Config {
    /// Whether the backward pass reads the second input; the forward pass always does.
    pub(crate) fn backward_needs_p1(&self) -> bool {
        self.gate.backward_reads() > 1
    }

    pub(crate) fn needs_p2(&self) -> bool {
        self.gate.inputs() == 3
    }

    pub(crate) fn math(&self) -> Math {
        Math {
            ptx: self.ptx,
            narrow: self.storage != Storage::Plain,
        }
    }
}

/// The affine map of a run of steps: `S -> a S + h`, with `a` replaced by 0 for good where the run holds
/// a reset (`cut`), so that a state that is not finite cannot pass it. Only where there are `resets` is `cut` looked at:
/// the compiler cannot know that it is always 0 once it has been through memory.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Run<N: Size> {
    pub a: Vector<f32, N>,
    pub h: Vector<f32, N>,
    pub cut: u32,
}

/// The state after the run.
#[cube]
pub(crate) fn run_through<N: Size>(
    run: &Run<N>,
    state: Vector<f32, N>,
    #[comptime] resets: bool,
) -> Vector<f32, N> {
    let after = fma(run.a, state, run.h);
    if comptime!(resets) {
        select(run.cut != 0, run.h, after)
    } else {
        after
    }
}

/// `first`, then `second`.
#[cube]
pub(crate) fn run_then<N: Size>(
    first: &Run<N>,
    second: &Run<N>,
    #[comptime] resets: bool,
) -> Run<N> {
    let mut a = first.a * second.a;
    if comptime!(resets) {
        a = select(second.cut != 0, second.a, a);
    }
    Run::<N> {
        a,
        h: run_through::<N>(second, first.h, resets),
        cut: first.cut | second.cut,
    }
}

/// The tile of a thread: steps from `first` on, of the channels at `col` of sequence `batch`.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Place {
    pub batch: usize,
    pub col: usize,
    pub first: usize,
    /// Whether the channels exist; a thread whose channels do not exist reads those before them and writes nothing.
    pub inside: bool,
}

/// The tile after `at`.
#[cube]
fn next_place(at: &Place, #[comptime] config: Config) -> Place {
    Place {
        batch: at.batch,
        col: at.col,
        first: at.first + comptime!(config.len),
        inside: at.inside,
    }
}

/// The order in which a tile takes its steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Order {
    /// The tile may reach past the end; steps past it count as the last one.
    tail: bool,
    /// Rows go down with the steps.
    down: bool,
}

/// The gate's inputs for `len` steps, in registers and in the storage type.
#[derive(CubeType)]
struct InputTile<S: Numeric, W: Size> {
    p0: Array<Vector<S, W>>,
    p1: Array<Vector<S, W>>,
    p2: Array<Vector<S, W>>,
    cut: Array<u32>,
}

#[cube]
fn empty_inputs<S: Numeric, W: Size>(#[comptime] len: usize) -> InputTile<S, W> {
    InputTile::<S, W> {
        p0: Array::<Vector<S, W>>::new(len),
        p1: Array::<Vector<S, W>>::new(len),
        p2: Array::<Vector<S, W>>::new(len),
        cut: Array::<u32>::new(len),
    }
}

/// Reads the inputs of step `u`; `second` says whether the pass needs the second one.
#[cube]
fn read_inputs<S: Numeric, W: Size>(
    tile: &mut InputTile<S, W>,
    inputs: &GateInputs<S, W>,
    geometry: &Geometry,
    at: &Place,
    #[comptime] u: usize,
    #[comptime] order: Order,
    #[comptime] second: bool,
    #[comptime] config: Config,
) {
    let base = geometry.offset_0 + at.batch * geometry.batch_0 + at.col;
    tile.p0[u] = inputs.in0[element(base, geometry.step_0, at.first, u, geometry.steps, order)];
    if comptime!(second) {
        let base = geometry.offset_1 + at.batch * geometry.batch_1 + at.col;
        tile.p1[u] = inputs.in1[element(base, geometry.step_1, at.first, u, geometry.steps, order)];
    }
    if comptime!(config.needs_p2()) {
        let base = geometry.offset_2 + at.batch * geometry.batch_2 + at.col;
        tile.p2[u] = inputs.in2[element(base, geometry.step_2, at.first, u, geometry.steps, order)];
    }
}

/// Reads whether a reset stands before step `u`.
#[cube]
fn read_reset<S: Numeric, R: Numeric, W: Size>(
    tile: &mut InputTile<S, W>,
    reset: &[R],
    geometry: &Geometry,
    at: &Place,
    #[comptime] u: usize,
    #[comptime] order: Order,
) {
    let i = element(
        at.batch * geometry.steps,
        1,
        at.first,
        u,
        geometry.steps,
        order,
    );
    tile.cut[u] = u32::cast_from(reset[i] != R::from_int(0));
}

/// The inputs of step `u`, widened. Those that the pass does not need are another one of them.
#[cube]
fn widened<S: Numeric, W: Size, N: Size>(
    tile: &InputTile<S, W>,
    #[comptime] u: usize,
    #[comptime] second: bool,
    #[comptime] config: Config,
) -> (Vector<f32, N>, Vector<f32, N>, Vector<f32, N>) {
    let x0 = widen::<S, W, N>(tile.p0[u], config.storage);
    let mut x1 = x0;
    if comptime!(second) {
        x1 = widen::<S, W, N>(tile.p1[u], config.storage);
    }
    let mut x2 = x0;
    if comptime!(config.needs_p2()) {
        x2 = widen::<S, W, N>(tile.p2[u], config.storage);
    }
    (x0, x1, x2)
}

/// The row of step `s`: rows go up with the steps, or down.
#[cube]
fn row_of(s: usize, steps: usize, #[comptime] down: bool) -> usize {
    if comptime!(down) { steps - 1 - s } else { s }
}

/// Where step `first + u` lies.
#[cube]
fn element(
    base: usize,
    stride: usize,
    first: usize,
    #[comptime] u: usize,
    steps: usize,
    #[comptime] order: Order,
) -> usize {
    if comptime!(order.tail) {
        base + row_of((first + u).min(steps - 1), steps, order.down) * stride
    } else {
        // From the first step on by strides: one multiplication a tile.
        let start = base + row_of(first, steps, order.down) * stride;
        if comptime!(order.down) {
            start - u * stride
        } else {
            start + u * stride
        }
    }
}
