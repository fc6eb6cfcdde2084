//! The recurrence on the CPU: vector instructions over channels, threads over sequences and blocks of channels.
//!
//! Every channel of every sequence is computed in the order of time and by itself, so results do not depend on the number of
//! threads or on how the work is divided, and a sequence with NaN or infinity does not affect others. One step of a stream is a
//! problem with `T = 1`.
//!
//! Carries are kept in [`Element::Acc`]. `h` is stored rounded, and the backward pass and the next chunk of a
//! sequence start from what is stored: in `f32` and `f64`, chunks give bit for bit what the whole gives.

mod backward;
mod block;
mod forward;
#[cfg(test)]
mod levels;

use std::marker::PhantomData;
use std::ops::Range;

use pulp::Arch;

use super::cost::{self, Pass};
use super::gates::{Coefficients, Visitor};
use super::{Problem, Rows, RowsMut, Shape};
use crate::element::compiled_here;
use crate::error::expect_length;
use crate::simd::pair::LANES;
use crate::threads::parallel_for;
use crate::{Element, Error};
use backward::Backward;
use block::{Block, WIDTH};
use forward::Forward;

/// Computes `h`.
///
/// * `inputs`: as many `[B, T, D]` as the gate takes, see [`Gate`](super::Gate).
/// * `h0`: `[B, D]`, zero if absent.
/// * `reset`: `[B, T]`; where set, `h_{t-1}` counts as 0.
/// * `h`: `[B, T, D]`, every element written, whatever was there. Its last row in the order of time is `h_last`,
///   see [`last`].
///
/// # Errors
/// [`Error::NoChannels`], [`Error::Inputs`], [`Error::Shape`], [`Error::Length`]; then nothing has been written.
pub fn forward<E: Kernels<E>>(
    problem: &Problem,
    inputs: &[Rows<E>],
    h0: Option<&[E]>,
    reset: Option<&[bool]>,
    h: RowsMut<E>,
) -> Result<(), Error> {
    check(problem, inputs, h0, reset)?;
    check_shape("h", problem.shape, h.shape())?;
    E::scan(problem, inputs, h0, reset, &h);
    Ok(())
}

/// Computes the gradients of a loss from its gradient with respect to `h`.
///
/// * `inputs`, `h0`, `reset`: as given to [`forward`], which gave `h`.
/// * `d_h`: `∂L/∂h`, `[B, T, D]`. `d_h_last`: `∂L/∂h_last` on top of it, `[B, D]`, zero if absent.
/// * `d_inputs`: one `[B, T, D]` per input; `d_h0`: `[B, D]`, if wanted. Every element is written, whatever was there.
///
/// # Errors
/// [`Error::NoChannels`], [`Error::Inputs`], [`Error::Shape`], [`Error::Length`]; then nothing has been written.
pub fn backward<E: Kernels<E>>(
    problem: &Problem,
    inputs: &[Rows<E>],
    h0: Option<&[E]>,
    reset: Option<&[bool]>,
    h: Rows<E>,
    d_h: Rows<E>,
    d_h_last: Option<&[E]>,
    d_inputs: Vec<RowsMut<E>>,
    d_h0: Option<&mut [E]>,
) -> Result<(), Error> {
    check(problem, inputs, h0, reset)?;
    problem.check(d_inputs.len())?;
    check_shape("h", problem.shape, h.shape())?;
    check_shape("d_h", problem.shape, d_h.shape())?;
    check_state("d_h_last", problem.shape, d_h_last)?;
    check_state("d_h0", problem.shape, d_h0.as_deref())?;
    d_inputs
        .iter()
        .try_for_each(|d| check_shape("d_input", problem.shape, d.shape()))?;

    // A state [B, D] is a [B, 1, D] tensor.
    let state = Shape::new(problem.shape.batch, 1, problem.shape.dim);
    let d_h0 = d_h0
        .map(|d_h0| RowsMut::contiguous(d_h0, state))
        .transpose()?;
    let d_h0 = d_h0.as_ref();
    E::scan_back(
        problem, inputs, h0, reset, h, d_h, d_h_last, &d_inputs, d_h0,
    );
    Ok(())
}

compiled_here! {
    Kernels<E> {
        fn scan(
            problem: &Problem,
            inputs: &[Rows<E>],
            h0: Option<&[E]>,
            reset: Option<&[bool]>,
            h: &RowsMut<E>,
        ) -> () = scan;
        fn scan_back(
            problem: &Problem,
            inputs: &[Rows<E>],
            h0: Option<&[E]>,
            reset: Option<&[bool]>,
            h: Rows<E>,
            d_h: Rows<E>,
            d_h_last: Option<&[E]>,
            d_inputs: &[RowsMut<E>],
            d_h0: Option<&RowsMut<E>>,
        ) -> () = scan_back;
    }
}

fn scan<E: Element>(
    problem: &Problem,
    inputs: &[Rows<E>],
    h0: Option<&[E]>,
    reset: Option<&[bool]>,
    h: &RowsMut<E>,
) {
    let operands = Operands {
        problem,
        inputs,
        h0,
        reset,
    };
    problem.gate.visit(ForwardPass { operands, h });
}

fn scan_back<E: Element>(
    problem: &Problem,
    inputs: &[Rows<E>],
    h0: Option<&[E]>,
    reset: Option<&[bool]>,
    h: Rows<E>,
    d_h: Rows<E>,
    d_h_last: Option<&[E]>,
    d_inputs: &[RowsMut<E>],
    d_h0: Option<&RowsMut<E>>,
) {
    let operands = Operands {
        problem,
        inputs,
        h0,
        reset,
    };
    let pass = BackwardPass {
        operands,
        h,
        d_h,
        d_h_last,
        d_inputs,
        d_h0,
    };
    problem.gate.visit(pass);
}

/// Copies `h_last` out of `h`: the row of the last step in the order of time, or `h_0` if there is no step.
///
/// # Errors
/// [`Error::Shape`], [`Error::Length`].
pub fn last<E: Element>(
    problem: &Problem,
    h: Rows<E>,
    h0: Option<&[E]>,
    h_last: &mut [E],
) -> Result<(), Error> {
    let Shape { batch, steps, dim } = problem.shape;
    check_shape("h", problem.shape, h.shape())?;
    check_state("h0", problem.shape, h0)?;
    check_state("h_last", problem.shape, Some(h_last))?;
    match (steps.checked_sub(1), h0) {
        (Some(end), _) => {
            let t = if problem.reverse { 0 } else { end };
            for b in 0..batch {
                h_last[b * dim..][..dim].copy_from_slice(h.row(b, t));
            }
        }
        (None, Some(h0)) => h_last.copy_from_slice(h0),
        (None, None) => h_last.fill(E::default()),
    }
    Ok(())
}

/// The operands of both passes.
struct Operands<'a, E> {
    problem: &'a Problem,
    inputs: &'a [Rows<'a, E>],
    h0: Option<&'a [E]>,
    reset: Option<&'a [bool]>,
}

impl<E: Element> Operands<'_, E> {
    /// One sequence and block of channels of it.
    fn block<C: Coefficients<N>, const N: usize>(
        &self,
        pass: Pass,
        b: usize,
        channels: Range<usize>,
    ) -> Block<'_, E, C, N> {
        // A pass that moves more than this leaves nothing useful in the caches when its results are read.
        const CACHED: usize = 16 << 20;

        let shape = self.problem.shape;
        // Stores past the caches that have gaps between them: fewer bytes in a row take longer than through the caches.
        let least = match pass {
            Pass::Forward => 512,
            Pass::Backward => 256,
        };
        let adjoin = channels.len() == shape.dim;
        let long = channels.len() * size_of::<E>() >= least;
        Block {
            problem: self.problem,
            inputs: std::array::from_fn(|k| &self.inputs[k]),
            h0: self.h0.map(|h0| state_row(h0, shape, b, &channels)),
            reset: self
                .reset
                .map(|reset| &reset[b * shape.steps..][..shape.steps]),
            b,
            channels,
            streaming: (adjoin || long) && cost::bytes(self.problem, pass, size_of::<E>()) > CACHED,
            gate: PhantomData,
        }
    }
}

struct ForwardPass<'a, E> {
    operands: Operands<'a, E>,
    h: &'a RowsMut<'a, E>,
}

impl<E: Element> Visitor for ForwardPass<'_, E> {
    type Output = ();

    fn visit<C: Coefficients<N>, const N: usize>(self) {
        let Self { operands, h } = self;
        let arch = Arch::new();
        for_each_block(operands.problem.shape, |b, channels| {
            let block = operands.block::<C, N>(Pass::Forward, b, channels);
            arch.dispatch(Forward { block, h });
        });
    }
}

struct BackwardPass<'a, E> {
    operands: Operands<'a, E>,
    h: Rows<'a, E>,
    d_h: Rows<'a, E>,
    d_h_last: Option<&'a [E]>,
    d_inputs: &'a [RowsMut<'a, E>],
    d_h0: Option<&'a RowsMut<'a, E>>,
}

impl<E: Element> Visitor for BackwardPass<'_, E> {
    type Output = ();

    fn visit<C: Coefficients<N>, const N: usize>(self) {
        let Self {
            operands,
            h,
            d_h,
            d_h_last,
            d_inputs,
            d_h0,
        } = self;
        let shape = operands.problem.shape;
        let arch = Arch::new();
        for_each_block(shape, |b, channels| {
            let d_h_last = d_h_last.map(|d| state_row(d, shape, b, &channels));
            let d_inputs = std::array::from_fn(|k| &d_inputs[k]);
            let block = operands.block::<C, N>(Pass::Backward, b, channels);
            arch.dispatch(Backward {
                block,
                h: &h,
                d_h: &d_h,
                d_h_last,
                d_inputs,
                d_h0,
            });
        });
    }
}

/// Calls `work` once for every sequence and block of its channels; blocks are disjoint and at most [`WIDTH`] wide.
fn for_each_block(shape: Shape, work: impl Fn(usize, Range<usize>) + Sync) {
    // Under this many elements a thread takes longer to wake than to compute.
    const SERIAL: usize = 16 * 1024;

    let rows = shape.batch * shape.steps;
    let serial = rows * shape.dim.next_multiple_of(LANES) <= SERIAL;
    let threads = if serial {
        1
    } else {
        rayon::current_num_threads()
    };
    let width = block_width(shape, threads);
    let blocks = shape.dim.div_ceil(width);
    let work = |task: usize| {
        let start = task % blocks * width;
        work(task / blocks, start..shape.dim.min(start + width));
    };
    let tasks = shape.batch * blocks;
    if serial || threads == 1 {
        (0..tasks).for_each(work);
    } else {
        parallel_for(tasks, work);
    }
}

/// Channels of a block: as many as there are, because memory streams long rows best, unless threads would idle.
fn block_width(shape: Shape, threads: usize) -> usize {
    // Narrower rows waste memory bandwidth, so blocks become narrower only for otherwise idle threads.
    const STREAM: usize = 16 * LANES;

    let tasks = |width: usize| shape.batch * shape.dim.div_ceil(width);
    // At most a ninth of the time is spent waiting for the last thread.
    let balanced = |width: usize| {
        let turns = tasks(width).div_ceil(threads);
        8 * turns * threads <= 9 * tasks(width)
    };
    let halve = |width: usize| (width / 2).next_multiple_of(LANES);
    let mut width = shape.dim.next_multiple_of(LANES).min(WIDTH);
    while width > STREAM && !balanced(width) {
        width = halve(width);
    }
    while width > LANES && tasks(width) < threads {
        width = halve(width);
    }
    width
}

fn state_row<'a, E>(state: &'a [E], shape: Shape, b: usize, channels: &Range<usize>) -> &'a [E] {
    &state[b * shape.dim..][channels.clone()]
}

fn check<E>(
    problem: &Problem,
    inputs: &[Rows<E>],
    h0: Option<&[E]>,
    reset: Option<&[bool]>,
) -> Result<(), Error> {
    problem.check(inputs.len())?;
    let shape = problem.shape;
    inputs
        .iter()
        .try_for_each(|input| check_shape("input", shape, input.shape()))?;
    check_state("h0", shape, h0)?;
    check_length("reset", shape.rows(), reset.map(<[bool]>::len))
}

fn check_shape(what: &'static str, expected: Shape, found: Shape) -> Result<(), Error> {
    let sizes = |shape: Shape| [shape.batch, shape.steps, shape.dim];
    if expected == found {
        Ok(())
    } else {
        Err(Error::Shape {
            what,
            expected: sizes(expected),
            found: sizes(found),
        })
    }
}

fn check_state<E>(what: &'static str, shape: Shape, state: Option<&[E]>) -> Result<(), Error> {
    check_length(what, shape.state(), state.map(<[E]>::len))
}

fn check_length(what: &'static str, expected: usize, found: Option<usize>) -> Result<(), Error> {
    match found {
        Some(found) => expect_length(what, expected, found),
        None => Ok(()),
    }
}
