//! The reference: the cells in `f64` and plain loops.
//!
//! [`forward`] and [`backward`] follow the formulas of the [module](super) one sequence and one step at a time, and share only
//! the contract with the fast forms. The formulas of a step are in the files of the cells.

use super::{Cell, Inputs, OutputGrads, Problem, ResetGate};
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

/// The inputs of a step of one sequence.
pub(super) struct StepInputs<'a> {
    pub hidden: usize,
    /// `[G·H]`, the input product.
    pub x: &'a [f64],
    /// `[G·H, H]`.
    pub u: &'a [f64],
    /// `[G·H]`.
    pub bias: Option<&'a [f64]>,
}

impl StepInputs<'_> {
    /// Row `row` of `u` times `v`.
    pub fn dot(&self, row: usize, v: &[f64]) -> f64 {
        self.u[row * v.len()..][..v.len()]
            .iter()
            .zip(v)
            .map(|(u, v)| u * v)
            .sum()
    }

    pub fn bias(&self, row: usize) -> f64 {
        self.bias.map_or(0.0, |bias| bias[row])
    }

    /// Row `row` of `U v + b`.
    pub fn product(&self, row: usize, v: &[f64]) -> f64 {
        self.dot(row, v) + self.bias(row)
    }
}

/// A step of one sequence: the states before and after, and the values between. A cell fills all but the states before.
pub(super) struct Step {
    pub h_prev: Vec<f64>,
    pub c_prev: Vec<f64>,
    /// Activated gates, `[G·H]`.
    pub gates: Vec<f64>,
    /// GRU: `U_n h + b_n` (reset after) or `r ∘ h` (reset before).
    pub inner: Vec<f64>,
    pub h: Vec<f64>,
    pub c: Vec<f64>,
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

/// Gradients on their way through a step. A cell reads `d_h`, moves `d_c` to before the step, and fills the others.
pub(super) struct StepGradients<'a> {
    /// `∂L/∂h_t`.
    pub d_h: &'a [f64],
    /// `∂L/∂c_t`, then `∂L/∂c_{t-1}`.
    pub d_c: &'a mut [f64],
    /// `[G·H]`: of the pre-activations, from the input.
    pub d_x: &'a mut [f64],
    /// `[G·H]`: of the pre-activations, from the product.
    pub d_a: Vec<f64>,
    /// `∂L/∂h_{t-1}`, without the part through the first product.
    pub d_h_prev: Vec<f64>,
}

/// The logistic function, without overflow.
pub(super) fn sigmoid(x: f64) -> f64 {
    if x >= 0.0 {
        1.0 / (1.0 + (-x).exp())
    } else {
        x.exp() / (1.0 + x.exp())
    }
}

fn step(problem: &Problem, inputs: StepInputs, h_prev: Vec<f64>, c_prev: Vec<f64>) -> Step {
    let mut step = Step {
        gates: vec![0.0; problem.gate_width()],
        inner: vec![0.0; problem.hidden],
        h: vec![0.0; problem.hidden],
        c: vec![0.0; c_prev.len()],
        h_prev,
        c_prev,
    };
    problem.cell.reference(&inputs, &mut step);
    step
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
        let of_step = StepInputs {
            hidden,
            x: &inputs.xg[row * width..][..width],
            u: inputs.u,
            bias: inputs.bias,
        };
        let done = step(problem, of_step, h, c);
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
    let mut gradients = StepGradients {
        d_h: dh,
        d_c: dc,
        d_x,
        d_a: vec![0.0; problem.gate_width()],
        d_h_prev: vec![0.0; hidden],
    };
    problem.cell.reference_backward(u, done, &mut gradients);
    let StepGradients {
        d_a,
        d_h_prev: mut dh_prev,
        ..
    } = gradients;
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
