//! The reference: the cells in `f64` and plain loops.
//!
//! [`forward`] and [`backward`] follow the formulas of the [module](super) one sequence and one step at a time, and share only
//! the contract with the fast forms.

use super::{Activation, Cell, Inputs, OutputGrads, Problem, ResetGate};
use crate::Error;

/// The results of forward.
#[derive(Debug, Clone, PartialEq)]
pub struct Forward {
    /// `[B, T, H]`: every state.
    pub h: Vec<f64>,
    /// `[B, H]`: the last state.
    pub h_last: Vec<f64>,
    /// `[B, H]` for the LSTM, empty for the others: the last cell state.
    pub c_last: Vec<f64>,
}

/// The gradient of every input.
#[derive(Debug, Clone, PartialEq)]
pub struct Gradients {
    /// `[B, T, G·H]`.
    pub d_xg: Vec<f64>,
    /// `[G·H, H]`.
    pub d_u: Vec<f64>,
    /// `[G·H]`.
    pub d_bias: Vec<f64>,
    /// `[B, H]`.
    pub d_h0: Vec<f64>,
    /// `[B, H]` for the LSTM, empty for the others.
    pub d_c0: Vec<f64>,
}

/// One step of one sequence: its inputs and intermediate values.
struct Step {
    h_prev: Vec<f64>,
    c_prev: Vec<f64>,
    /// Activated gates, `[G·H]`.
    gates: Vec<f64>,
    /// GRU: `U_n h + b_n` (reset after) or `r ∘ h` (reset before).
    inner: Vec<f64>,
    h: Vec<f64>,
    c: Vec<f64>,
}

impl Step {
    /// A step past the end of its sequence.
    fn padding(h: Vec<f64>, c: Vec<f64>) -> Self {
        Self {
            h_prev: h.clone(),
            c_prev: c.clone(),
            gates: Vec::new(),
            inner: Vec::new(),
            h,
            c,
        }
    }
}

fn sigmoid(x: f64) -> f64 {
    if x >= 0.0 {
        1.0 / (1.0 + (-x).exp())
    } else {
        x.exp() / (1.0 + x.exp())
    }
}

/// Row `row` of `u` times `v`.
fn dot(u: &[f64], row: usize, v: &[f64]) -> f64 {
    u[row * v.len()..][..v.len()]
        .iter()
        .zip(v)
        .map(|(u, v)| u * v)
        .sum()
}

fn step(
    problem: &Problem,
    x: &[f64],
    u: &[f64],
    bias: Option<&[f64]>,
    h_prev: Vec<f64>,
    c_prev: Vec<f64>,
) -> Step {
    let hidden = problem.hidden;
    let b = |row: usize| bias.map_or(0.0, |bias| bias[row]);
    let product = |row: usize| dot(u, row, &h_prev) + b(row);
    let mut gates = vec![0.0; problem.gate_width()];
    let mut inner = vec![0.0; hidden];
    let mut h = vec![0.0; hidden];
    let mut c = vec![0.0; c_prev.len()];
    match problem.cell {
        Cell::Gru { reset } => {
            for row in 0..2 * hidden {
                gates[row] = sigmoid(x[row] + product(row));
            }
            for j in 0..hidden {
                inner[j] = match reset {
                    ResetGate::After => product(2 * hidden + j),
                    ResetGate::Before => gates[j] * h_prev[j],
                };
            }
            for j in 0..hidden {
                let row = 2 * hidden + j;
                let (r, z) = (gates[j], gates[hidden + j]);
                let n = match reset {
                    ResetGate::After => x[row] + r * inner[j],
                    ResetGate::Before => x[row] + dot(u, row, &inner) + b(row),
                }
                .tanh();
                gates[row] = n;
                h[j] = (1.0 - z) * n + z * h_prev[j];
            }
        }
        Cell::Lstm => {
            for j in 0..hidden {
                let pre = |gate: usize| x[gate * hidden + j] + product(gate * hidden + j);
                let (i, f, g, o) = (
                    sigmoid(pre(0)),
                    sigmoid(pre(1)),
                    pre(2).tanh(),
                    sigmoid(pre(3)),
                );
                for (gate, value) in [i, f, g, o].into_iter().enumerate() {
                    gates[gate * hidden + j] = value;
                }
                c[j] = f * c_prev[j] + i * g;
                h[j] = o * c[j].tanh();
            }
        }
        Cell::Elman { activation } => {
            for j in 0..hidden {
                let pre = x[j] + product(j);
                h[j] = match activation {
                    Activation::Tanh => pre.tanh(),
                    Activation::Relu => pre.max(0.0),
                };
            }
        }
    }
    Step {
        h_prev,
        c_prev,
        gates,
        inner,
        h,
        c,
    }
}

/// Every step of sequence `b`, in running order.
fn sequence(problem: &Problem, inputs: &Inputs<f64>, b: usize) -> Vec<Step> {
    let (steps, hidden, width) = (problem.steps, problem.hidden, problem.gate_width());
    let initial = |state: Option<&[f64]>| {
        state.map_or(vec![0.0; hidden], |s| s[b * hidden..][..hidden].to_vec())
    };
    let (mut h, mut c) = (initial(inputs.h0), initial(inputs.c0));
    let mut all: Vec<Step> = Vec::with_capacity(steps);
    for index in 0..steps {
        let row = b * steps + problem.time(index);
        if inputs.is_reset(b, problem.time(index), steps) {
            h.fill(0.0);
            c.fill(0.0);
        }
        if inputs.is_padding(b, problem.time(index)) {
            all.push(Step::padding(h.clone(), c.clone()));
            continue;
        }
        let done = step(
            problem,
            &inputs.xg[row * width..][..width],
            inputs.u,
            inputs.bias,
            h,
            c,
        );
        (h, c) = (done.h.clone(), done.c.clone());
        all.push(done);
    }
    all
}

/// Runs the cell over every sequence.
///
/// # Errors
/// [`Error::Length`] for a slice of the wrong length, [`Error::NoChannels`] for `H = 0`.
pub fn forward(problem: &Problem, inputs: &Inputs<f64>) -> Result<Forward, Error> {
    inputs.check(problem)?;
    let (steps, hidden) = (problem.steps, problem.hidden);
    let from = |state: Option<&[f64]>, len: usize| state.map_or(vec![0.0; len], <[f64]>::to_vec);
    let mut h = vec![0.0; problem.outputs()];
    let mut h_last = from(inputs.h0, problem.state());
    let mut c_last = from(inputs.c0, problem.cell_state());
    for b in 0..problem.batch {
        for (index, done) in sequence(problem, inputs, b).into_iter().enumerate() {
            h[(b * steps + problem.time(index)) * hidden..][..hidden].copy_from_slice(&done.h);
            if index + 1 == steps {
                h_last[b * hidden..][..hidden].copy_from_slice(&done.h);
                if !c_last.is_empty() {
                    c_last[b * hidden..][..hidden].copy_from_slice(&done.c);
                }
            }
        }
    }
    Ok(Forward { h, h_last, c_last })
}

/// The gradient of `Σ h ∘ d_h + Σ h_last ∘ d_h_last + Σ c_last ∘ d_c_last` in every input.
///
/// Runs the cell again for the intermediate values; needs no saved ones.
///
/// # Errors
/// [`Error::Length`] for a slice of the wrong length, [`Error::NoChannels`] for `H = 0`.
pub fn backward(
    problem: &Problem,
    inputs: &Inputs<f64>,
    grads: &OutputGrads<f64>,
) -> Result<Gradients, Error> {
    inputs.check(problem)?;
    grads.check(problem)?;
    let (steps, hidden, width) = (problem.steps, problem.hidden, problem.gate_width());
    let mut out = Gradients {
        d_xg: vec![0.0; problem.batch * steps * width],
        d_u: vec![0.0; width * hidden],
        d_bias: vec![0.0; width],
        d_h0: vec![0.0; problem.state()],
        d_c0: vec![0.0; problem.cell_state()],
    };
    for b in 0..problem.batch {
        let last = |state: Option<&[f64]>| {
            state.map_or(vec![0.0; hidden], |s| s[b * hidden..][..hidden].to_vec())
        };
        let (mut dh, mut dc) = (last(grads.d_h_last), last(grads.d_c_last));
        for (index, done) in sequence(problem, inputs, b).iter().enumerate().rev() {
            let row = b * steps + problem.time(index);
            if let Some(d_h) = grads.d_h {
                for j in 0..hidden {
                    dh[j] += d_h[row * hidden + j];
                }
            }
            if inputs.is_padding(b, problem.time(index)) {
                continue;
            }
            let d_x = &mut out.d_xg[row * width..][..width];
            step_backward(
                problem,
                inputs.u,
                done,
                &mut dh,
                &mut dc,
                d_x,
                &mut out.d_u,
                &mut out.d_bias,
            );
            if inputs.is_reset(b, problem.time(index), steps) {
                dh.fill(0.0);
                dc.fill(0.0);
            }
        }
        out.d_h0[b * hidden..][..hidden].copy_from_slice(&dh);
        if !out.d_c0.is_empty() {
            out.d_c0[b * hidden..][..hidden].copy_from_slice(&dc);
        }
    }
    Ok(out)
}

/// Moves `dh` and `dc` from after the step to before it, and adds the step's part of the weights' gradients.
fn step_backward(
    problem: &Problem,
    u: &[f64],
    done: &Step,
    dh: &mut [f64],
    dc: &mut [f64],
    d_x: &mut [f64],
    d_u: &mut [f64],
    d_bias: &mut [f64],
) {
    let hidden = problem.hidden;
    let mut dh_prev = vec![0.0; hidden];
    // Gradients of the recurrent pre-activations `U v + b`, and the `v` that each block of rows was multiplied with.
    let mut d_a = vec![0.0; problem.gate_width()];
    match problem.cell {
        Cell::Gru { reset } => {
            for j in 0..hidden {
                let (z, n) = (done.gates[hidden + j], done.gates[2 * hidden + j]);
                let d_n = dh[j] * (1.0 - z) * (1.0 - n * n);
                d_x[hidden + j] = dh[j] * (done.h_prev[j] - n) * z * (1.0 - z);
                d_x[2 * hidden + j] = d_n;
                dh_prev[j] = dh[j] * z;
            }
            for j in 0..hidden {
                let r = done.gates[j];
                let d_r = match reset {
                    ResetGate::After => d_x[2 * hidden + j] * done.inner[j],
                    ResetGate::Before => {
                        // Through s = r ∘ h: column j of U_n.
                        let d_s: f64 = (0..hidden)
                            .map(|k| d_x[2 * hidden + k] * u[(2 * hidden + k) * hidden + j])
                            .sum();
                        dh_prev[j] += d_s * r;
                        d_s * done.h_prev[j]
                    }
                };
                d_x[j] = d_r * r * (1.0 - r);
            }
            d_a.copy_from_slice(d_x);
            if reset == ResetGate::After {
                for j in 0..hidden {
                    d_a[2 * hidden + j] *= done.gates[j];
                }
            }
        }
        Cell::Lstm => {
            for j in 0..hidden {
                let [i, f, g, o] = [0, 1, 2, 3].map(|gate| done.gates[gate * hidden + j]);
                let tanh_c = done.c[j].tanh();
                let d_c = dc[j] + dh[j] * o * (1.0 - tanh_c * tanh_c);
                d_x[j] = d_c * g * i * (1.0 - i);
                d_x[hidden + j] = d_c * done.c_prev[j] * f * (1.0 - f);
                d_x[2 * hidden + j] = d_c * i * (1.0 - g * g);
                d_x[3 * hidden + j] = dh[j] * tanh_c * o * (1.0 - o);
                dc[j] = d_c * f;
            }
            d_a.copy_from_slice(d_x);
        }
        Cell::Elman { activation } => {
            for j in 0..hidden {
                d_x[j] = match activation {
                    Activation::Tanh => dh[j] * (1.0 - done.h[j] * done.h[j]),
                    Activation::Relu if done.h[j] > 0.0 => dh[j],
                    Activation::Relu => 0.0,
                };
            }
            d_a.copy_from_slice(d_x);
        }
    }
    for row in 0..problem.gate_width() {
        let through_reset = problem.cell
            == Cell::Gru {
                reset: ResetGate::Before,
            }
            && row >= 2 * hidden;
        let v = if through_reset {
            &done.inner
        } else {
            &done.h_prev
        };
        d_bias[row] += d_a[row];
        for k in 0..hidden {
            d_u[row * hidden + k] += d_a[row] * v[k];
            if !through_reset {
                dh_prev[k] += d_a[row] * u[row * hidden + k];
            }
        }
    }
    dh.copy_from_slice(&dh_prev);
}
