//! Second derivatives of the raw scan: the derivatives of its gradients along a direction.
//!
//! With `h_t = a_t h_{t-1} + b_t` and `D_t = g_t + a_{t+1} D_{t+1}`, where `g = ∂L/∂h`, the gradients are
//! `∂L/∂a_t = D_t h_{t-1}`, `∂L/∂b_t = D_t` and `∂L/∂h_0 = a_1 D_1`. Along a direction, written with a dot,
//!
//! ```text
//! ḣ_t = a_t ḣ_{t-1} + (ȧ_t h_{t-1} + ḃ_t)             a scan, from ḣ_0
//! Ḋ_t = (ġ_t + ȧ_{t+1} D_{t+1}) + a_{t+1} Ḋ_{t+1}     the same scan backwards, from ġ_last
//!
//! (∂L/∂a_t)˙ = Ḋ_t h_{t-1} + D_t ḣ_{t-1}      (∂L/∂b_t)˙ = Ḋ_t      (∂L/∂h_0)˙ = ȧ_1 D_1 + a_1 Ḋ_1
//! ```
//!
//! For a loss that is linear in `h`, `L = Σ g h`, with `ġ = 0`, this is the product of its Hessian with the direction; for any
//! other loss `ġ` is the loss's own Hessian with respect to `h`, times `ḣ`. Where a step is reset, the state before it counts
//! as 0 and no gradient passes back.
//!
//! Source: Pearlmutter, *Fast Exact Multiplication by the Hessian* (1994), section 4.

use super::{Gate, Problem, Rows, RowsMut, cpu};
use crate::error::expect_length;
use crate::recurrence::cpu::Kernels;
use crate::{Element, Error};

/// The arguments of the backward pass of a raw scan: a point, or a direction.
#[derive(Debug, Clone, Copy)]
pub struct Point<'a, E> {
    /// `[B, T, D]`.
    pub a: &'a [E],
    /// `[B, T, D]`.
    pub b: &'a [E],
    /// `[B, D]`, zero if absent.
    pub h0: Option<&'a [E]>,
    /// `∂L/∂h`, `[B, T, D]`.
    pub d_h: &'a [E],
    /// `∂L/∂h_last` on top of it, `[B, D]`, zero if absent.
    pub d_h_last: Option<&'a [E]>,
}

/// The gradients of a scan, or their derivatives.
#[derive(Debug, Clone, PartialEq)]
pub struct Gradients<E> {
    /// With respect to `a`, `[B, T, D]`.
    pub a: Vec<E>,
    /// With respect to `b`, `[B, T, D]`.
    pub b: Vec<E>,
    /// With respect to `h_0`, `[B, D]`.
    pub h0: Vec<E>,
}

impl<E: Element> Gradients<E> {
    fn zeros(problem: &Problem) -> Self {
        let shape = problem.shape;
        Self {
            a: vec![E::ZERO; shape.elements()],
            b: vec![E::ZERO; shape.elements()],
            h0: vec![E::ZERO; shape.state()],
        }
    }
}

/// The derivatives of the gradients at `at` along `along`, in `f64`, from the formulas, one element at a time.
///
/// # Errors
/// [`Error::NoChannels`], [`Error::Gate`] for another gate than the raw one, [`Error::Length`].
#[cfg(feature = "check")]
pub fn oracle(
    problem: &Problem,
    reset: Option<&[bool]>,
    at: &Point<f64>,
    along: &Point<f64>,
) -> Result<Gradients<f64>, Error> {
    check(problem, reset, at, along)?;
    let mut moved = Gradients::zeros(problem);
    for lane in 0..problem.shape.state() {
        let value = |state: Option<&[f64]>| state.map_or(0.0, |state| state[lane]);
        let (mut h, mut h_dot) = (value(at.h0), value(along.h0));
        let mut before = Vec::with_capacity(problem.shape.steps);
        for step in steps(problem, reset, lane) {
            let i = step.element;
            if step.reset {
                (h, h_dot) = (0.0, 0.0);
            }
            before.push((h, h_dot));
            h_dot = at.a[i] * h_dot + along.a[i] * h + along.b[i];
            h = at.a[i] * h + at.b[i];
        }
        // The gradient that later steps pass back.
        let (mut later, mut later_dot) = (value(at.d_h_last), value(along.d_h_last));
        let steps: Vec<Step> = steps(problem, reset, lane).collect();
        for (step, (h, h_dot)) in steps.iter().zip(before).rev() {
            let i = step.element;
            let (d, d_dot) = (at.d_h[i] + later, along.d_h[i] + later_dot);
            moved.a[i] = d_dot * h + d * h_dot;
            moved.b[i] = d_dot;
            later = at.a[i] * d;
            later_dot = at.a[i] * d_dot + along.a[i] * d;
            if step.reset {
                (later, later_dot) = (0.0, 0.0);
            }
        }
        moved.h0[lane] = later_dot;
    }
    Ok(moved)
}

/// The derivatives of the gradients at `at` along `along` by two forward and two backward scans on the CPU. Tensors are
/// contiguous; values between the scans are kept in the storage type.
///
/// # Errors
/// As [`oracle`].
pub fn on_cpu<E: Kernels<E>>(
    problem: &Problem,
    reset: Option<&[bool]>,
    at: &Point<E>,
    along: &Point<E>,
) -> Result<Gradients<E>, Error> {
    check(problem, reset, at, along)?;
    let elements = problem.shape.elements();
    let product = |x: E, y: E| x.widen() * y.widen();

    let h = states(problem, reset, at.a, at.b, at.h0)?;
    let before = previous(problem, reset, &h, at.h0);
    let input: Vec<E> = (0..elements)
        .map(|i| E::narrow(product(along.a[i], before[i]) + along.b[i].widen()))
        .collect();
    let h_dot = states(problem, reset, at.a, &input, along.h0)?;
    let before_dot = previous(problem, reset, &h_dot, along.h0);

    let d = adjoint(problem, reset, at, &h, at.d_h, at.d_h_last)?.b;
    // The part that the direction of `a` at each step passes back to the step before, or to the initial state.
    let mut d_h = along.d_h.to_vec();
    let mut to_h0 = vec![E::ZERO; problem.shape.state()];
    for lane in 0..problem.shape.state() {
        let mut target = &mut to_h0[lane];
        for step in steps(problem, reset, lane) {
            let i = step.element;
            if !step.reset {
                *target = E::narrow(target.widen() + product(along.a[i], d[i]));
            }
            target = &mut d_h[i];
        }
    }
    let mut moved = adjoint(problem, reset, at, &h, &d_h, along.d_h_last)?;
    for i in 0..elements {
        moved.a[i] = E::narrow(moved.a[i].widen() + product(d[i], before_dot[i]));
    }
    for (h0, more) in moved.h0.iter_mut().zip(to_h0) {
        *h0 = E::narrow(h0.widen() + more.widen());
    }
    Ok(moved)
}

/// A step of one channel of one sequence.
struct Step {
    /// Its index in a `[B, T, D]` tensor.
    element: usize,
    /// Whether it is reset.
    reset: bool,
}

/// The steps of channel `lane` of the `[B, D]` channels, in the order of time.
fn steps<'a>(
    problem: &'a Problem,
    reset: Option<&'a [bool]>,
    lane: usize,
) -> impl Iterator<Item = Step> + 'a {
    let shape = problem.shape;
    let (b, d) = (lane / shape.dim, lane % shape.dim);
    (0..shape.steps).map(move |s| {
        let t = if problem.reverse {
            shape.steps - 1 - s
        } else {
            s
        };
        let row = b * shape.steps + t;
        Step {
            element: row * shape.dim + d,
            reset: reset.is_some_and(|reset| reset[row]),
        }
    })
}

/// The state that each step starts from.
fn previous<E: Element>(
    problem: &Problem,
    reset: Option<&[bool]>,
    h: &[E],
    h0: Option<&[E]>,
) -> Vec<E> {
    let mut before = vec![E::ZERO; h.len()];
    for lane in 0..problem.shape.state() {
        let mut last = h0.map_or(E::ZERO, |h0| h0[lane]);
        for step in steps(problem, reset, lane) {
            if !step.reset {
                before[step.element] = last;
            }
            last = h[step.element];
        }
    }
    before
}

/// The forward scan.
fn states<E: Kernels<E>>(
    problem: &Problem,
    reset: Option<&[bool]>,
    a: &[E],
    b: &[E],
    h0: Option<&[E]>,
) -> Result<Vec<E>, Error> {
    let shape = problem.shape;
    let mut h = vec![E::ZERO; shape.elements()];
    let inputs = [Rows::contiguous(a, shape)?, Rows::contiguous(b, shape)?];
    let out = RowsMut::contiguous(&mut h, shape)?;
    cpu::forward(problem, &inputs, h0, reset, out)?;
    Ok(h)
}

/// The backward scan at a point, for gradients of its states.
fn adjoint<E: Kernels<E>>(
    problem: &Problem,
    reset: Option<&[bool]>,
    at: &Point<E>,
    h: &[E],
    d_h: &[E],
    d_h_last: Option<&[E]>,
) -> Result<Gradients<E>, Error> {
    let shape = problem.shape;
    let mut d = Gradients::zeros(problem);
    let inputs = [
        Rows::contiguous(at.a, shape)?,
        Rows::contiguous(at.b, shape)?,
    ];
    let out = vec![
        RowsMut::contiguous(&mut d.a, shape)?,
        RowsMut::contiguous(&mut d.b, shape)?,
    ];
    let (h, d_h) = (Rows::contiguous(h, shape)?, Rows::contiguous(d_h, shape)?);
    let d_h0 = Some(&mut d.h0[..]);
    cpu::backward(problem, &inputs, at.h0, reset, h, d_h, d_h_last, out, d_h0)?;
    Ok(d)
}

fn check<E>(
    problem: &Problem,
    reset: Option<&[bool]>,
    at: &Point<E>,
    along: &Point<E>,
) -> Result<(), Error> {
    if problem.gate != Gate::Raw {
        return Err(Error::Gate {
            what: "the second derivative of a scan",
            expected: Gate::Raw.name(),
            found: problem.gate.name(),
        });
    }
    problem.check(2)?;
    let shape = problem.shape;
    let (elements, state) = (shape.elements(), shape.state());
    let marks = shape.rows();
    expect_length("reset", marks, reset.map_or(marks, <[bool]>::len))?;
    for point in [at, along] {
        expect_length("a", elements, point.a.len())?;
        expect_length("b", elements, point.b.len())?;
        expect_length("h0", state, point.h0.map_or(state, <[E]>::len))?;
        expect_length("d_h", elements, point.d_h.len())?;
        expect_length("d_h_last", state, point.d_h_last.map_or(state, <[E]>::len))?;
    }
    Ok(())
}
