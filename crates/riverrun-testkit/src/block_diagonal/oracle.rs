//! The reference: the block-diagonal recurrence and its gradients in `f64`, one element at a time, from the formulas.

use riverrun_kernels::expect_length;

use super::{Problem, Shape};
use crate::Error;

/// Gradients of a loss.
#[derive(Debug, Clone, PartialEq)]
pub struct Gradients {
    /// With respect to `A`, `[B, T, N, P, P]`.
    pub a: Vec<f64>,
    /// With respect to `b`, `[B, T, N·P]`.
    pub b: Vec<f64>,
    /// With respect to `h_0`, `[B, N·P]`.
    pub h0: Vec<f64>,
}

/// `h`, `[B, T, N·P]`.
///
/// # Errors
/// [`Error::NoChannels`], [`Error::Length`].
pub fn forward(
    problem: &Problem,
    a: &[f64],
    b: &[f64],
    h0: Option<&[f64]>,
    reset: Option<&[bool]>,
) -> Result<Vec<f64>, Error> {
    problem.check(a, h0, reset, b)?;
    let Shape {
        batch, steps, size, ..
    } = problem.shape;
    let dim = problem.shape.dim();
    let mut h = vec![0.0; problem.shape.elements()];
    for n in 0..batch {
        let mut state = h0.map_or(vec![0.0; dim], |h0| h0[n * dim..][..dim].to_vec());
        for s in 0..steps {
            let row = n * steps + problem.time(s);
            if reset.is_some_and(|reset| reset[row]) {
                state.fill(0.0);
            }
            let next: Vec<f64> = (0..dim)
                .map(|i| {
                    let first = i - i % size;
                    let product = |j: usize| a[(row * dim + i) * size + j] * state[first + j];
                    b[row * dim + i] + (0..size).map(product).sum::<f64>()
                })
                .collect();
            h[row * dim..][..dim].copy_from_slice(&next);
            state = next;
        }
    }
    Ok(h)
}

/// The gradients of a loss whose gradient with respect to `h` is `d_h` (`[B, T, N·P]`), plus `d_h_last` (`[B, N·P]`)
/// with respect to the last state.
///
/// # Errors
/// [`Error::NoChannels`], [`Error::Length`].
pub fn backward(
    problem: &Problem,
    a: &[f64],
    b: &[f64],
    h0: Option<&[f64]>,
    reset: Option<&[bool]>,
    d_h: &[f64],
    d_h_last: Option<&[f64]>,
) -> Result<Gradients, Error> {
    let h = forward(problem, a, b, h0, reset)?;
    let shape = problem.shape;
    let (steps, size, dim) = (shape.steps, shape.size, shape.dim());
    expect_length("d_h", shape.elements(), d_h.len())?;
    expect_length(
        "d_h_last",
        shape.state(),
        d_h_last.map_or(shape.state(), <[f64]>::len),
    )?;
    let mut d = Gradients {
        a: vec![0.0; shape.matrices()],
        b: vec![0.0; shape.elements()],
        h0: vec![0.0; shape.state()],
    };
    for n in 0..shape.batch {
        let state = n * dim..(n + 1) * dim;
        // The gradient that later steps pass back to h_t.
        let mut later = d_h_last.map_or(vec![0.0; dim], |d| d[state.clone()].to_vec());
        for s in (0..steps).rev() {
            let row = n * steps + problem.time(s);
            let reset = reset.is_some_and(|reset| reset[row]);
            let before = |i: usize| match s {
                _ if reset => 0.0,
                0 => h0.map_or(0.0, |h0| h0[n * dim + i]),
                _ => h[(n * steps + problem.time(s - 1)) * dim + i],
            };
            let total: Vec<f64> = (0..dim).map(|i| d_h[row * dim + i] + later[i]).collect();
            later.fill(0.0);
            for i in 0..dim {
                let first = i - i % size;
                for j in 0..size {
                    let at = (row * dim + i) * size + j;
                    d.a[at] = total[i] * before(first + j);
                    if !reset {
                        later[first + j] += a[at] * total[i];
                    }
                }
            }
            d.b[row * dim..][..dim].copy_from_slice(&total);
        }
        d.h0[state].copy_from_slice(&later);
    }
    Ok(d)
}
