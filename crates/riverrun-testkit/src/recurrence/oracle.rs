//! The reference: the recurrence and its gradients in `f64`, one element at a time.
//!
//! Written from the formulas; nothing is shared with the kernels, and nothing is optimised. Tensors are contiguous `[B, T, D]`,
//! states `[B, D]`, resets `[B, T]`.

use riverrun_kernels::expect_length;

use super::{Problem, Shape};
use crate::Error;

/// Gradients of a loss.
#[derive(Debug, Clone, PartialEq)]
pub struct Gradients {
    /// With respect to each input of the gate, `[B, T, D]` each.
    pub inputs: Vec<Vec<f64>>,
    /// With respect to `h_0`, `[B, D]`.
    pub h0: Vec<f64>,
}

/// `h`, `[B, T, D]`.
///
/// # Errors
/// The errors of the kernels: no channels, a wrong number of inputs, a wrong length.
pub fn forward(
    problem: &Problem,
    inputs: &[&[f64]],
    h0: Option<&[f64]>,
    reset: Option<&[bool]>,
) -> Result<Vec<f64>, Error> {
    check(problem, inputs, h0, reset)?;
    let Shape { batch, steps, dim } = problem.shape;
    let mut h = vec![0.0; problem.shape.elements()];
    for b in 0..batch {
        for d in 0..dim {
            let mut carry = h0.map_or(0.0, |h0| h0[b * dim + d]);
            for t in order(problem) {
                if reset.is_some_and(|reset| reset[b * steps + t]) {
                    carry = 0.0;
                }
                let at = (b * steps + t) * dim + d;
                let step = problem.gate.reference(&at_element(inputs, at));
                carry = step.a * carry + step.b;
                h[at] = carry;
            }
        }
    }
    Ok(h)
}

/// `h_last`, `[B, D]`: the state after the last step in the order of time, `h_0` if there is no step.
pub fn last(problem: &Problem, h: &[f64], h0: Option<&[f64]>) -> Vec<f64> {
    let Shape { batch, steps, dim } = problem.shape;
    let Some(t) = order(problem).last() else {
        return h0.map_or(vec![0.0; batch * dim], <[f64]>::to_vec);
    };
    (0..batch)
        .flat_map(|b| &h[(b * steps + t) * dim..][..dim])
        .copied()
        .collect()
}

/// The gradients of a loss whose gradient with respect to `h` is `d_h` (`[B, T, D]`), plus `d_h_last` (`[B, D]`) with
/// respect to `h_last`.
///
/// # Errors
/// The errors of the kernels: no channels, a wrong number of inputs, a wrong length.
pub fn backward(
    problem: &Problem,
    inputs: &[&[f64]],
    h0: Option<&[f64]>,
    reset: Option<&[bool]>,
    d_h: &[f64],
    d_h_last: Option<&[f64]>,
) -> Result<Gradients, Error> {
    let Shape { batch, steps, dim } = problem.shape;
    let h = forward(problem, inputs, h0, reset)?;
    expect_length("d_h", problem.shape.elements(), d_h.len())?;
    expect_length(
        "d_h_last",
        problem.shape.state(),
        d_h_last.map_or(batch * dim, <[f64]>::len),
    )?;

    let mut d_inputs = vec![vec![0.0; problem.shape.elements()]; inputs.len()];
    let mut d_h0 = vec![0.0; problem.shape.state()];
    let order: Vec<usize> = order(problem).collect();
    for b in 0..batch {
        for d in 0..dim {
            let state = b * dim + d;
            // The gradient that later steps pass back to h_t.
            let mut later = d_h_last.map_or(0.0, |d_h_last| d_h_last[state]);
            for s in (0..steps).rev() {
                let t = order[s];
                let at = (b * steps + t) * dim + d;
                let reset = reset.is_some_and(|reset| reset[b * steps + t]);
                let h_prev = match s {
                    _ if reset => 0.0,
                    0 => h0.map_or(0.0, |h0| h0[state]),
                    _ => h[(b * steps + order[s - 1]) * dim + d],
                };
                let total = d_h[at] + later;
                let step = problem.gate.reference(&at_element(inputs, at));
                for (k, d_input) in d_inputs.iter_mut().enumerate() {
                    d_input[at] = total * h_prev * step.da[k] + total * step.db[k];
                }
                later = if reset { 0.0 } else { total * step.a };
            }
            d_h0[state] = later;
        }
    }
    Ok(Gradients {
        inputs: d_inputs,
        h0: d_h0,
    })
}

/// The time steps in the order in which they run.
fn order(problem: &Problem) -> impl Iterator<Item = usize> {
    let Problem {
        shape: Shape { steps, .. },
        reverse,
        ..
    } = *problem;
    (0..steps).map(move |s| if reverse { steps - 1 - s } else { s })
}

/// The inputs of one element.
fn at_element(inputs: &[&[f64]], at: usize) -> Vec<f64> {
    inputs.iter().map(|input| input[at]).collect()
}

fn check(
    problem: &Problem,
    inputs: &[&[f64]],
    h0: Option<&[f64]>,
    reset: Option<&[bool]>,
) -> Result<(), Error> {
    problem.check(inputs.len())?;
    let shape = problem.shape;
    inputs
        .iter()
        .try_for_each(|input| expect_length("input", shape.elements(), input.len()))?;
    expect_length("h0", shape.state(), h0.map_or(shape.state(), <[f64]>::len))?;
    let marks = shape.rows();
    expect_length("reset", marks, reset.map_or(marks, <[bool]>::len))
}
