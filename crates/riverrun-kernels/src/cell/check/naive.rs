//! The cells in `f32` and plain loops, which set the error that the fast forms may have.
//!
//! Forward and backward of a batch at once, from the textbook's formulas; nothing is shared with the fast forms. The formulas
//! of a step are in the files of the cells. Values that a
//! form in the storage type `E` would keep in memory between steps (states, gates, gradients of pre-activations) are rounded to
//! it.

use super::{Case, Results};
use crate::Element;
use crate::cell::{Cell, ResetGate};

/// The inputs of a step of one sequence.
pub(in crate::cell) struct StepInputs<'a> {
    pub hidden: usize,
    /// `[G·H]`, the input product.
    pub x: &'a [f32],
    /// `[G·H, H]`.
    pub u: &'a [f32],
    /// `[G·H]`.
    pub bias: Option<&'a [f32]>,
}

impl StepInputs<'_> {
    /// Row `row` of `U v + b`.
    pub fn product(&self, row: usize, v: &[f32]) -> f32 {
        let u = &self.u[row * self.hidden..][..self.hidden];
        let dot = u.iter().zip(v).fold(0.0f32, |sum, (u, v)| sum + u * v);
        dot + self.bias.map_or(0.0, |bias| bias[row])
    }
}

/// A step of one sequence: the states before and after, and the values between. A cell fills all but the states before.
pub(in crate::cell) struct Step {
    pub h_prev: Vec<f32>,
    pub c_prev: Vec<f32>,
    /// Activated gates, `[G·H]`.
    pub gates: Vec<f32>,
    /// GRU: `U_n h + b_n` (reset after) or `r ∘ h` (reset before).
    pub inner: Vec<f32>,
    pub h: Vec<f32>,
    pub c: Vec<f32>,
}

/// Gradients on their way through a step. A cell reads `d_h`, moves `d_c` to before the step, and fills the others.
pub(in crate::cell) struct StepGradients<'a> {
    /// `∂L/∂h_t`.
    pub d_h: &'a [f32],
    /// `∂L/∂c_t`, then `∂L/∂c_{t-1}`.
    pub d_c: &'a mut [f32],
    /// `[G·H]`: of the pre-activations, from the input.
    pub d_x: Vec<f32>,
    /// `[G·H]`: of the pre-activations, from the product.
    pub d_a: Vec<f32>,
    /// `∂L/∂h_{t-1}`, without the part through the first product.
    pub d_h_prev: Vec<f32>,
}

/// The logistic function.
pub(in crate::cell) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// The results, with stored values rounded to `E`.
pub fn run<E: Element>(case: &Case<f32>) -> Results<f32> {
    let p = case.problem;
    let stored = |x: f32| E::from_f64(f64::from(x)).to_f64() as f32;
    let (b, t, h, w) = (p.batch, p.steps, p.hidden, p.gate_width());
    let zeros = |n: usize| vec![0.0f32; n];
    let mut out = Results {
        h: zeros(p.outputs()),
        h_last: case.h0.clone().unwrap_or(zeros(p.state())),
        c_last: case.c0.clone().unwrap_or(zeros(p.cell_state())),
        d_xg: zeros(b * t * w),
        d_u: zeros(w * h),
        d_bias: zeros(w),
        d_h0: zeros(p.state()),
        d_c0: zeros(p.cell_state()),
    };
    let time = |s: usize| if p.reverse { t - 1 - s } else { s };
    for i in 0..b {
        let mut h_now = out.h_last[i * h..][..h].to_vec();
        let mut c_now = if p.cell == Cell::Lstm {
            out.c_last[i * h..][..h].to_vec()
        } else {
            zeros(h)
        };
        let mut tape = Vec::new();
        for s in 0..t {
            let row = i * t + time(s);
            let padding = case.is_padding(i, time(s));
            if case.reset.as_ref().is_some_and(|r| r[row]) && !padding {
                h_now.fill(0.0);
                c_now.fill(0.0);
            }
            let inputs = StepInputs {
                hidden: h,
                x: &case.xg[row * w..][..w],
                u: &case.u,
                bias: case.bias.as_deref(),
            };
            let mut step = Step {
                h_prev: h_now.clone(),
                c_prev: c_now.clone(),
                gates: zeros(w),
                inner: zeros(h),
                h: h_now,
                c: c_now,
            };
            if !padding {
                p.cell.naive(&inputs, &mut step);
            }
            let Step {
                gates, inner, h, c, ..
            } = &mut step;
            for rounded in [h, c, gates, inner] {
                rounded.iter_mut().for_each(|x| *x = stored(*x));
            }
            (h_now, c_now) = (step.h.clone(), step.c.clone());
            out.h[row * p.hidden..][..p.hidden].copy_from_slice(&h_now);
            tape.push(step);
        }
        out.h_last[i * h..][..h].copy_from_slice(&h_now);
        if p.cell == Cell::Lstm {
            out.c_last[i * h..][..h].copy_from_slice(&c_now);
        }

        let start =
            |v: &Option<Vec<f32>>| v.as_ref().map_or(zeros(h), |v| v[i * h..][..h].to_vec());
        let (mut dh, mut dc) = (start(&case.d_h_last), start(&case.d_c_last));
        for s in (0..t).rev() {
            let row = i * t + time(s);
            if let Some(d_h) = &case.d_h {
                (0..h).for_each(|j| dh[j] += d_h[row * h + j]);
            }
            if case.is_padding(i, time(s)) {
                continue;
            }
            let mut gradients = StepGradients {
                d_h: &dh,
                d_c: &mut dc,
                d_x: zeros(w),
                d_a: zeros(w),
                d_h_prev: zeros(h),
            };
            p.cell.naive_backward(&case.u, &tape[s], &mut gradients);
            let StepGradients {
                d_x: mut dx,
                d_a: mut da,
                d_h_prev: mut back,
                ..
            } = gradients;
            for made in [&mut dx, &mut da] {
                made.iter_mut().for_each(|x| *x = stored(*x));
            }
            for k in 0..w {
                out.d_bias[k] += da[k];
                let through_r = p.cell
                    == Cell::Gru {
                        reset: ResetGate::Before,
                    }
                    && k >= 2 * h;
                let v = match through_r {
                    true => &tape[s].inner,
                    false => &tape[s].h_prev,
                };
                for j in 0..h {
                    out.d_u[k * h + j] += da[k] * v[j];
                    if !through_r {
                        back[j] += da[k] * case.u[k * h + j];
                    }
                }
            }
            out.d_xg[row * w..][..w].copy_from_slice(&dx);
            dh = back;
            if case.reset.as_ref().is_some_and(|r| r[row]) {
                dh.fill(0.0);
                dc.fill(0.0);
            }
        }
        out.d_h0[i * h..][..h].copy_from_slice(&dh);
        if p.cell == Cell::Lstm {
            out.d_c0[i * h..][..h].copy_from_slice(&dc);
        }
    }
    out
}
