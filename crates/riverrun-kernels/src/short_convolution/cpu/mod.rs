//! On the CPU: a task for a run of steps, row by row.

mod rows;

use std::borrow::Cow;
use std::ops::Range;

use super::Shape;
use crate::activation::Nonlinearity;
use crate::activation::cpu::{Becomes, replace};
use crate::element::compiled_here;
use crate::error::expect_length;
use crate::simd::real::Real;
use crate::threads::parallel_map;
use crate::threads::pieces::{InPieces, Pieces};
use crate::{Element, Error};
use rows::{Sequence, Whole, accumulate};

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
    /// Whether `y` is the SiLU of the convolution.
    pub silu: bool,
    /// The parts of `y`, `[B, T, channels]` each, whose channels together are `D`; written.
    pub y: Vec<(usize, &'a mut [E])>,
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
    /// As in the forward pass; read for SiLU alone.
    pub bias: Option<&'a [E]>,
    /// As in the forward pass.
    pub state: Option<&'a [E]>,
    /// As in the forward pass.
    pub reset: Option<&'a [bool]>,
    /// As in the forward pass.
    pub silu: bool,
    /// `∂L/∂y` in the parts of `y`.
    pub d_y: Vec<(usize, &'a [E])>,
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
        silu,
        mut y,
        last,
    } = args;
    check(shape, x.len(), weight.len(), bias, state, reset)?;
    check_parts("y", shape, y.iter().map(|(width, y)| (*width, y.len())))?;
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
    let whole = Whole {
        shape,
        x,
        weight,
        bias,
        state,
        reset,
    };
    each_run(&mut y, shape, |task, mut parts| {
        let mut sum = Vec::with_capacity(dim);
        for k in 0..RUN.min(shape.rows() - task * RUN) {
            whole.row(task * RUN + k, &mut sum);
            if silu {
                replace(Nonlinearity::Silu, Becomes::Value, &mut sum);
            }
            let mut rest = &sum[..];
            for (width, y) in &mut parts {
                let (own, later) = rest.split_at(*width);
                store::<E>(&mut y[k * *width..(k + 1) * *width], own);
                rest = later;
            }
        }
    });
    Ok(())
}

/// Calls `run` with the number of each run of [`RUN`] rows and its part of each part, on free threads of the pool.
fn each_run<E: Element>(
    parts: &mut [(usize, &mut [E])],
    shape: Shape,
    run: impl Fn(usize, Vec<(usize, &mut [E])>) + Sync,
) {
    let tasks = shape.rows().div_ceil(RUN);
    let mut runs: Vec<Vec<(usize, &mut [E])>> = (0..tasks).map(|_| Vec::new()).collect();
    for (width, part) in parts.iter_mut().filter(|(width, _)| *width > 0) {
        for (run, rows) in runs.iter_mut().zip(part.chunks_mut(RUN * *width)) {
            run.push((*width, rows));
        }
    }
    let tasks = runs.par_chunks_mut(1).enumerate();
    tasks.for_each(|(task, parts)| run(task, std::mem::take(&mut parts[0])));
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
        bias,
        state,
        reset,
        silu,
        d_y,
        d_last,
        d_x,
        d_weight,
        d_bias,
        d_state,
    } = args;
    check(shape, x.len(), weight.len(), bias, state, reset)?;
    check_parts("d_y", shape, d_y.iter().map(|(width, d)| (*width, d.len())))?;
    expect_length("d_x", shape.elements(), d_x.len())?;
    expect_length("d_weight", shape.weights(), d_weight.len())?;
    expect_length("d_bias", shape.dim, d_bias.len())?;
    expect_length("d_state", shape.state(), d_state.len())?;
    let all = shape.state();
    expect_length("d_last", all, d_last.map_or(all, <[E]>::len))?;
    let (dim, steps, before) = (shape.dim, shape.steps, shape.before());
    let whole = Whole {
        shape,
        x,
        weight,
        bias,
        state,
        reset,
    };
    let d_y = match &d_y[..] {
        [(_, d_y)] if !silu => Cow::Borrowed(*d_y),
        _ if silu => Cow::Owned(whole.before_silu(&d_y)),
        parts => Cow::Owned(joined(parts, shape)),
    };
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

/// The parts of a row beside each other.
fn joined<E: Element>(parts: &[(usize, &[E])], shape: Shape) -> Vec<E> {
    let rows = 0..shape.rows();
    let row = |i: usize| {
        let part = move |(width, part): &(usize, &[E])| part[i * width..(i + 1) * width].to_vec();
        parts.iter().flat_map(part)
    };
    rows.flat_map(row).collect()
}

fn check<E>(
    shape: Shape,
    x: usize,
    weight: usize,
    bias: Option<&[E]>,
    state: Option<&[E]>,
    reset: Option<&[bool]>,
) -> Result<(), Error> {
    if shape.dim == 0 || shape.taps == 0 {
        return Err(Error::NoChannels);
    }
    expect_length("x", shape.elements(), x)?;
    expect_length("weight", shape.weights(), weight)?;
    expect_length("bias", shape.dim, bias.map_or(shape.dim, <[E]>::len))?;
    let (all, marks) = (shape.state(), shape.rows());
    expect_length("state", all, state.map_or(all, <[E]>::len))?;
    expect_length("reset", marks, reset.map_or(marks, <[bool]>::len))
}

/// Checks the channels of parts and their lengths.
fn check_parts(
    what: &'static str,
    shape: Shape,
    parts: impl Iterator<Item = (usize, usize)> + Clone,
) -> Result<(), Error> {
    let channels = parts.clone().map(|(width, _)| width).sum();
    expect_length("the channels of the parts", shape.dim, channels)?;
    for (width, len) in parts {
        expect_length(what, shape.rows().saturating_mul(width), len)?;
    }
    Ok(())
}
