//! Steps held in registers: loading them, reducing them to one affine map, and applying a state to them.
//!
//! Both passes are one recurrence over a state `S`, in the order of their own steps `s = 0, 1, …`:
//! forward `S <- a S + b` and the output is the new `S`; backward (`s` counts from the last step)
//! `D = g + S`, `S <- a D`, and the outputs are the input gradients made of `D`. So everything between
//! the registers and the state (chunks, hand-over) is shared.

mod backward;
mod forward;

pub(crate) use backward::{apply_backward, load_backward, reduce_backward};
pub(crate) use forward::{apply_forward, load_forward, reduce_forward};

use cubecl::prelude::*;

use super::storage::Storage;
use super::tuning::Registers;
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
    pub(crate) fn needs_p1(&self, backward: bool) -> bool {
        !backward || self.gate.backward_reads() > 1
    }

    pub(crate) fn needs_p2(&self) -> bool {
        self.gate.inputs() == 3
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

/// The row of step `s`: rows go up with the steps, or down.
#[cube]
fn row_of(s: usize, steps: usize, #[comptime] down: bool) -> usize {
    if comptime!(down) { steps - 1 - s } else { s }
}

/// Where step `first + u` lies. With `tail`, steps past the end count as the last one.
#[cube]
fn element(
    base: usize,
    stride: usize,
    first: usize,
    #[comptime] u: usize,
    steps: usize,
    #[comptime] tail: bool,
    #[comptime] down: bool,
) -> usize {
    if comptime!(tail) {
        base + row_of((first + u).min(steps - 1), steps, down) * stride
    } else {
        // From the first step on by strides: one multiplication a tile.
        let start = base + row_of(first, steps, down) * stride;
        if comptime!(down) {
            start - u * stride
        } else {
            start + u * stride
        }
    }
}
