//! On the CPU: a task for a run of steps, row by row.

use std::ops::Range;

use super::Shape;
use crate::element::compiled_here;
use crate::error::expect_length;
use crate::simd::real::Real;
use crate::threads::parallel_map;
use crate::threads::pieces::{InPieces, Pieces};
use crate::{Element, Error};

/// Steps of a task.
const RUN: usize = 64;

/// Arguments of a forward pass.
#[derive(Debug)]
pub struct Forward<'a, E> {
    /// `[B, T, D]`.
    pub x: &'a [E],
    /// `[K, D]`, the step's own weight last.
    pub weight: &'a [E],
    /// `[D]`.
    pub bias: Option<&'a [E]>,
    /// `[B, K-1, D]`, zeros when absent.
    pub state: Option<&'a [E]>,
    /// `[B, T]`.
    pub reset: Option<&'a [bool]>,
    /// `[B, T, D]`, written.
    pub y: &'a mut [E],
    /// `[B, K-1, D]`, written.
    pub last: &'a mut [E],
}

/// Arguments of a backward pass.
#[derive(Debug)]
pub struct Backward<'a, E> {
    /// As in the forward pass.
    pub x: &'a [E],
    /// As in the forward pass.
    pub weight: &'a [E],
    /// As in the forward pass.
    pub state: Option<&'a [E]>,
    /// As in the forward pass.
    pub reset: Option<&'a [bool]>,
    /// `[B, T, D]`, `∂L/∂y`.
    pub d_y: &'a [E],
    /// `[B, K-1, D]`, the gradient of the state after the last step.
    pub d_last: Option<&'a [E]>,
    /// `[B, T, D]`, written.
    pub d_x: &'a mut [E],
    /// `[K, D]`, written.
    pub d_weight: &'a mut [E],
    /// `[D]`, written.
    pub d_bias: &'a mut [E],
    /// `[B, K-1, D]`, written.
    pub d_state: &'a mut [E],
}

/// The inputs of a sequence: the state, then the steps. Rows are counted from the first of the state.
struct Sequence<'a, E> {
    shape: Shape,
    x: &'a [E],
    state: Option<&'a [E]>,
    reset: Option<&'a [bool]>,
}

impl<'a, E: Element> Sequence<'a, E> {
    fn new(
        shape: Shape,
        b: usize,
        x: &'a [E],
        state: Option<&'a [E]>,
        reset: Option<&'a [bool]>,
    ) -> Self {
        let (steps, before) = (shape.steps * shape.dim, shape.before() * shape.dim);
        Self {
            shape,
            x: &x[b * steps..(b + 1) * steps],
            state: state.map(|state| &state[b * before..(b + 1) * before]),
            reset: reset.map(|reset| &reset[b * shape.steps..(b + 1) * shape.steps]),
        }
    }

    /// Row `K-1+t` is the input of step `t`; `None` for the zeros of an absent state.
    fn input(&self, row: usize) -> Option<&'a [E]> {
        let (dim, before) = (self.shape.dim, self.shape.before());
        let at = |rows: &'a [E], row: usize| &rows[row * dim..(row + 1) * dim];
        match row.checked_sub(before) {
            Some(t) => Some(at(self.x, t)),
            None => self.state.map(|state| at(state, row)),
        }
    }

    /// The last row that sees `row`: the steps up to the next reset, and at most `K - 1` later.
    fn reach(&self, row: usize) -> usize {
        let before = self.shape.before();
        let cut = |later: usize| {
            let step = (later).checked_sub(before);
            step.is_some_and(|t| self.reset.is_some_and(|reset| t < reset.len() && reset[t]))
        };
        let mut last = row;
        while last < row + before && !cut(last + 1) {
            last += 1;
        }
        last
    }

    /// The first row that step `t` sees.
    fn earliest(&self, t: usize) -> usize {
        let own = self.shape.before() + t;
        let mut first = own;
        let cut = |row: usize| {
            let step = row.checked_sub(self.shape.before());
            step.is_some_and(|t| self.reset.is_some_and(|reset| reset[t]))
        };
        while first > t && !cut(first) {
            first -= 1;
        }
        first
    }
}

/// `sum += weight ∘ row`.
fn accumulate<E: Element>(sum: &mut [E::Acc], weight: &[E], row: &[E]) {
    for ((sum, &weight), &x) in sum.iter_mut().zip(weight).zip(row) {
        *sum += weight.widen() * x.widen();
    }
}

fn store<E: Element>(to: &mut [E], from: &[E::Acc]) {
    for (to, &from) in to.iter_mut().zip(from) {
        *to = E::narrow(from);
    }
}

/// Computes `y` and the state after the last step.
///
/// # Errors
/// [`Error::Length`], [`Error::NoChannels`].
pub fn forward<E: Kernels<E>>(shape: Shape, args: Forward<'_, E>) -> Result<(), Error> {
    E::convolve(shape, args)
}

compiled_here! {
    Kernels<E> {
        fn convolve(shape: Shape, args: Forward<'_, E>) -> Result<(), Error> = convolve;
        fn convolve_back(shape: Shape, args: Backward<'_, E>) -> Result<(), Error> = convolve_back;
    }
}

fn convolve<E: Element>(shape: Shape, args: Forward<'_, E>) -> Result<(), Error> {
    let Forward {
        x,
        weight,
        bias,
        state,
        reset,
        y,
        last,
    } = args;
    check(shape, [x.len(), y.len()], weight.len(), state, reset)?;
    expect_length("bias", shape.dim, bias.map_or(shape.dim, <[E]>::len))?;
    expect_length("the last state", shape.state(), last.len())?;
    let (dim, steps, before) = (shape.dim, shape.steps, shape.before());
    if shape.state() > 0 {
        let rows = last.par_chunks_mut(dim).enumerate();
        rows.for_each(|(i, row)| {
            let sequence = Sequence::new(shape, i / before, x, state, reset);
            // Rows of the state that the step after the last would see.
            let at = steps + i % before;
            let input = (sequence.reach(at) >= steps + before - 1)
                .then(|| sequence.input(at))
                .flatten();
            match input {
                Some(input) => row.copy_from_slice(input),
                None => row.fill(E::ZERO),
            }
        });
    }
    if shape.elements() == 0 {
        return Ok(());
    }
    let row = |(i, y): (usize, &mut [E]), sum: &mut Vec<E::Acc>| {
        let (b, t) = (i / steps, i % steps);
        let sequence = Sequence::new(shape, b, x, state, reset);
        sum.clear();
        match bias {
            Some(bias) => sum.extend(bias.iter().map(|x| x.widen())),
            None => sum.resize(dim, E::Acc::ZERO),
        }
        for at in sequence.earliest(t)..=before + t {
            if let Some(input) = sequence.input(at) {
                let tap = (at - t) * dim;
                accumulate::<E>(sum, &weight[tap..tap + dim], input);
            }
        }
        store::<E>(y, sum);
    };
    let tasks = y.par_chunks_mut(RUN * dim).enumerate();
    tasks.for_each(|(task, y)| {
        let mut sum = Vec::with_capacity(dim);
        for (k, y) in y.chunks_mut(dim).enumerate() {
            row((task * RUN + k, y), &mut sum);
        }
    });
    Ok(())
}

/// Computes the gradients.
///
/// # Errors
/// As [`forward`].
pub fn backward<E: Kernels<E>>(shape: Shape, args: Backward<'_, E>) -> Result<(), Error> {
    E::convolve_back(shape, args)
}

fn convolve_back<E: Element>(shape: Shape, args: Backward<'_, E>) -> Result<(), Error> {
    let Backward {
        x,
        weight,
        state,
        reset,
        d_y,
        d_last,
        d_x,
        d_weight,
        d_bias,
        d_state,
    } = args;
    check(shape, [x.len(), d_y.len()], weight.len(), state, reset)?;
    expect_length("d_x", shape.elements(), d_x.len())?;
    expect_length("d_weight", shape.weights(), d_weight.len())?;
    expect_length("d_bias", shape.dim, d_bias.len())?;
    expect_length("d_state", shape.state(), d_state.len())?;
    let all = shape.state();
    expect_length("d_last", all, d_last.map_or(all, <[E]>::len))?;
    let (dim, steps, before) = (shape.dim, shape.steps, shape.before());
    // ∂L/∂ of row `at` of a sequence, from the steps that see it.
    let gradient = |b: usize, at: usize, sum: &mut Vec<E::Acc>| {
        let sequence = Sequence::new(shape, b, x, state, reset);
        sum.clear();
        sum.resize(dim, E::Acc::ZERO);
        let reach = sequence.reach(at);
        for later in at.max(before)..=reach.min(steps + before - 1) {
            let t = later - before;
            let (tap, step) = ((at - t) * dim, (b * steps + t) * dim);
            accumulate::<E>(sum, &weight[tap..tap + dim], &d_y[step..step + dim]);
        }
        // The state after the last step holds it too.
        if let (Some(d_last), true) = (d_last, at >= steps && reach >= steps + before - 1) {
            let from = (b * before + at - steps) * dim;
            for (sum, d) in sum.iter_mut().zip(&d_last[from..from + dim]) {
                *sum += d.widen();
            }
        }
    };
    if shape.state() > 0 {
        let rows = d_state.par_chunks_mut(dim).enumerate();
        rows.for_each(|(i, row)| {
            let mut sum = Vec::with_capacity(dim);
            gradient(i / before, i % before, &mut sum);
            store::<E>(row, &sum);
        });
    }
    let tasks = d_x.par_chunks_mut(RUN * dim).enumerate();
    tasks.for_each(|(task, d_x)| {
        let mut sum = Vec::with_capacity(dim);
        for (k, row) in d_x.chunks_mut(dim).enumerate() {
            let i = task * RUN + k;
            gradient(i / steps, before + i % steps, &mut sum);
            store::<E>(row, &sum);
        }
    });
    // Sums over rows: a task for a run of them, added in order.
    let tasks = shape.rows().div_ceil(RUN);
    let part = |rows: Range<usize>| {
        let mut sums = vec![E::Acc::ZERO; shape.weights() + dim];
        for i in rows {
            let (b, t) = (i / steps, i % steps);
            let sequence = Sequence::new(shape, b, x, state, reset);
            let d_y = &d_y[i * dim..(i + 1) * dim];
            for at in sequence.earliest(t)..=before + t {
                if let Some(input) = sequence.input(at) {
                    let tap = (at - t) * dim;
                    accumulate::<E>(&mut sums[tap..tap + dim], input, d_y);
                }
            }
            for (sum, d) in sums[shape.weights()..].iter_mut().zip(d_y) {
                *sum += d.widen();
            }
        }
        sums
    };
    let parts = parallel_map(tasks, |task| {
        part(task * RUN..((task + 1) * RUN).min(shape.rows()))
    });
    let mut sums = vec![E::Acc::ZERO; shape.weights() + dim];
    for part in parts {
        for (sum, part) in sums.iter_mut().zip(part) {
            *sum += part;
        }
    }
    store::<E>(d_weight, &sums[..shape.weights()]);
    store::<E>(d_bias, &sums[shape.weights()..]);
    Ok(())
}

fn check<E>(
    shape: Shape,
    [x, y]: [usize; 2],
    weight: usize,
    state: Option<&[E]>,
    reset: Option<&[bool]>,
) -> Result<(), Error> {
    if shape.dim == 0 || shape.taps == 0 {
        return Err(Error::NoChannels);
    }
    expect_length("x", shape.elements(), x)?;
    expect_length("y", shape.elements(), y)?;
    expect_length("weight", shape.weights(), weight)?;
    let (all, marks) = (shape.state(), shape.rows());
    expect_length("state", all, state.map_or(all, <[E]>::len))?;
    expect_length("reset", marks, reset.map_or(marks, <[bool]>::len))
}
