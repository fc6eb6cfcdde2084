//! The truth: the recurrence and its gradients in `f64`, one element at a time.
//!
//! Written from the formulas, with nothing shared with the kernels and nothing done for speed.
//! Tensors are contiguous `[B, T, D]`, states `[B, D]`, resets `[B, T]`.

use super::{Candidate, Gate, Problem, Shape};
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
/// As the kernels: no channels, a wrong number of inputs, a wrong length.
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
                let step = step(problem.gate, inputs, at);
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
/// As the kernels: no channels, a wrong number of inputs, a wrong length.
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
    length("d_h", problem.shape.elements(), d_h.len())?;
    length(
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
            // What the steps after t pass back to h_t.
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
                let step = step(problem.gate, inputs, at);
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

/// The coefficients of one element, and their derivatives with respect to each input.
struct Step {
    a: f64,
    b: f64,
    da: Vec<f64>,
    db: Vec<f64>,
}

fn step(gate: Gate, inputs: &[&[f64]], at: usize) -> Step {
    match gate {
        Gate::Raw => Step {
            a: inputs[0][at],
            b: inputs[1][at],
            da: vec![1.0, 0.0],
            db: vec![0.0, 1.0],
        },
        Gate::Sigmoid => {
            let k_a = inputs[0][at];
            let a = sigmoid(k_a);
            Step {
                a,
                b: inputs[1][at],
                da: vec![a * sigmoid(-k_a), 0.0],
                db: vec![0.0, 1.0],
            }
        }
        Gate::MinGru { candidate } => {
            let (k_z, k_h) = (inputs[0][at], inputs[1][at]);
            let (z, not_z) = (sigmoid(k_z), sigmoid(-k_z));
            let (c, slope) = activation(candidate, k_h);
            let dz = z * not_z;
            Step {
                a: not_z,
                b: z * c,
                da: vec![-dz, 0.0],
                db: vec![dz * c, z * slope],
            }
        }
        Gate::MinLstm {
            candidate,
            normalized: false,
        } => {
            let (k_f, k_i, k_h) = (inputs[0][at], inputs[1][at], inputs[2][at]);
            let (f, i) = (sigmoid(k_f), sigmoid(k_i));
            let (c, slope) = activation(candidate, k_h);
            let (df, di) = (f * sigmoid(-k_f), i * sigmoid(-k_i));
            Step {
                a: f,
                b: i * c,
                da: vec![df, 0.0, 0.0],
                db: vec![0.0, di * c, i * slope],
            }
        }
        Gate::MinLstm {
            candidate,
            normalized: true,
        } => {
            let (k_f, k_i, k_h) = (inputs[0][at], inputs[1][at], inputs[2][at]);
            let d = softplus(-k_f) - softplus(-k_i);
            let (f, i) = (sigmoid(-d), sigmoid(d));
            let (c, slope) = activation(candidate, k_h);
            // f' and i' depend on d alone: ∂f'/∂d = -f' i', ∂i'/∂d = f' i', ∂d/∂k_f = -σ(-k_f), ∂d/∂k_i = σ(-k_i).
            let (dk_f, dk_i) = (f * i * sigmoid(-k_f), -f * i * sigmoid(-k_i));
            let db = vec![-dk_f * c, -dk_i * c, i * slope];
            Step {
                a: f,
                b: i * c,
                da: vec![dk_f, dk_i, 0.0],
                db,
            }
        }
        Gate::RgLru => {
            let (s, u) = (inputs[0][at], inputs[1][at]);
            if s < 0.0 {
                return Step {
                    a: 1.0,
                    b: 0.0,
                    da: vec![0.0; 2],
                    db: vec![0.0; 2],
                };
            }
            let a = (-s).exp();
            let rest = -(-2.0 * s).exp_m1();
            let slope = (0.5 / rest.sqrt()).min(Gate::STEEPEST_ROOT);
            Step {
                a,
                b: rest.sqrt() * u,
                da: vec![-a, 0.0],
                db: vec![2.0 * a * a * slope * u, rest.sqrt()],
            }
        }
    }
}

/// `(act(u), act'(u))`.
fn activation(candidate: Candidate, u: f64) -> (f64, f64) {
    match candidate {
        Candidate::Identity => (u, 1.0),
        Candidate::Tanh => (u.tanh(), u.cosh().powi(-2)),
        Candidate::G if u >= 0.0 => (u + 0.5, 1.0),
        Candidate::G => (sigmoid(u), sigmoid(u) * sigmoid(-u)),
    }
}

/// `1 / (1 + e^-x)`, without the overflow of `e^-x` for large negative `x`.
fn sigmoid(x: f64) -> f64 {
    if x >= 0.0 {
        1.0 / (1.0 + (-x).exp())
    } else {
        x.exp() / (1.0 + x.exp())
    }
}

/// `ln(1 + e^x)`, without the overflow of `e^x` for large `x`.
fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
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
        .try_for_each(|input| length("input", shape.elements(), input.len()))?;
    length("h0", shape.state(), h0.map_or(shape.state(), <[f64]>::len))?;
    let marks = shape.batch * shape.steps;
    length("reset", marks, reset.map_or(marks, <[bool]>::len))
}

fn length(what: &'static str, expected: usize, found: usize) -> Result<(), Error> {
    if expected == found {
        Ok(())
    } else {
        Err(Error::Length {
            what,
            expected,
            found,
        })
    }
}
