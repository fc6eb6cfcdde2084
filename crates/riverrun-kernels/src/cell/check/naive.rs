//! The cells in `f32` and plain loops, which set the error that the fast forms may have.
//!
//! Forward and backward of a batch at once, from the textbook's formulas; nothing is shared with the fast forms. Values that a
//! form in the storage type `E` would keep in memory between steps (states, gates, gradients of pre-activations) are rounded to
//! it.

use super::{Case, Results};
use crate::Element;
use crate::cell::{Activation, Cell, ResetGate};

fn sigmoid(x: f32) -> f32 {
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
    let bias = |row: usize| case.bias.as_ref().map_or(0.0, |v| v[row]);
    let dot =
        |row: usize, v: &[f32]| (0..h).fold(0.0f32, |sum, k| sum + case.u[row * h + k] * v[k]);
    for i in 0..b {
        let mut h_now = out.h_last[i * h..][..h].to_vec();
        let mut c_now = if p.cell == Cell::Lstm {
            out.c_last[i * h..][..h].to_vec()
        } else {
            zeros(h)
        };
        // By step: previous h and c, gates, q or s, c.
        let mut tape = Vec::new();
        for s in 0..t {
            let row = i * t + time(s);
            let padding = case.is_padding(i, time(s));
            if case.reset.as_ref().is_some_and(|r| r[row]) && !padding {
                h_now.fill(0.0);
                c_now.fill(0.0);
            }
            let x = &case.xg[row * w..][..w];
            let (h_prev, c_prev) = (h_now.clone(), c_now.clone());
            let (mut gates, mut inner) = (zeros(w), zeros(h));
            match p.cell {
                _ if padding => {}
                Cell::Gru { reset } => {
                    (0..2 * h).for_each(|k| gates[k] = sigmoid(x[k] + (dot(k, &h_prev) + bias(k))));
                    for j in 0..h {
                        inner[j] = if reset == ResetGate::After {
                            dot(2 * h + j, &h_prev) + bias(2 * h + j)
                        } else {
                            gates[j] * h_prev[j]
                        };
                    }
                    for j in 0..h {
                        let k = 2 * h + j;
                        let pre = if reset == ResetGate::After {
                            gates[j] * inner[j]
                        } else {
                            dot(k, &inner) + bias(k)
                        };
                        gates[k] = (x[k] + pre).tanh();
                        h_now[j] = (1.0 - gates[h + j]) * gates[k] + gates[h + j] * h_prev[j];
                    }
                }
                Cell::Lstm => {
                    for k in 0..w {
                        let pre = x[k] + (dot(k, &h_prev) + bias(k));
                        gates[k] = if k / h == 2 { pre.tanh() } else { sigmoid(pre) };
                    }
                    for j in 0..h {
                        c_now[j] = gates[h + j] * c_prev[j] + gates[j] * gates[2 * h + j];
                        h_now[j] = gates[3 * h + j] * c_now[j].tanh();
                    }
                }
                Cell::Elman { activation } => {
                    for j in 0..h {
                        let pre = x[j] + (dot(j, &h_prev) + bias(j));
                        h_now[j] = if activation == Activation::Tanh {
                            pre.tanh()
                        } else {
                            pre.max(0.0)
                        };
                    }
                }
            }
            for rounded in [&mut h_now, &mut c_now, &mut gates, &mut inner] {
                rounded.iter_mut().for_each(|x| *x = stored(*x));
            }
            out.h[row * h..][..h].copy_from_slice(&h_now);
            tape.push((h_prev, c_prev, gates, inner, c_now.clone()));
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
            let (h_prev, c_prev, gates, inner, c) = &tape[s];
            if let Some(d_h) = &case.d_h {
                (0..h).for_each(|j| dh[j] += d_h[row * h + j]);
            }
            if case.is_padding(i, time(s)) {
                continue;
            }
            let mut dx = zeros(w);
            let mut da = zeros(w);
            let mut back = zeros(h);
            let mut v = vec![h_prev.clone(); w / h];
            match p.cell {
                Cell::Gru { reset } => {
                    for j in 0..h {
                        let (z, n) = (gates[h + j], gates[2 * h + j]);
                        dx[2 * h + j] = dh[j] * (1.0 - z) * (1.0 - n * n);
                        dx[h + j] = dh[j] * (h_prev[j] - n) * z * (1.0 - z);
                        back[j] = dh[j] * z;
                    }
                    for j in 0..h {
                        let r = gates[j];
                        let dr = if reset == ResetGate::After {
                            dx[2 * h + j] * inner[j]
                        } else {
                            let ds = (0..h).fold(0.0f32, |sum, k| {
                                sum + dx[2 * h + k] * case.u[(2 * h + k) * h + j]
                            });
                            back[j] += ds * r;
                            ds * h_prev[j]
                        };
                        dx[j] = dr * r * (1.0 - r);
                    }
                    da.copy_from_slice(&dx);
                    if reset == ResetGate::After {
                        (0..h).for_each(|j| da[2 * h + j] *= gates[j]);
                    } else {
                        v[2] = inner.clone();
                    }
                }
                Cell::Lstm => {
                    for j in 0..h {
                        let [i, f, g, o] = [0, 1, 2, 3].map(|k| gates[k * h + j]);
                        let tc = c[j].tanh();
                        let d = dc[j] + dh[j] * o * (1.0 - tc * tc);
                        dx[j] = d * g * i * (1.0 - i);
                        dx[h + j] = d * c_prev[j] * f * (1.0 - f);
                        dx[2 * h + j] = d * i * (1.0 - g * g);
                        dx[3 * h + j] = dh[j] * tc * o * (1.0 - o);
                        dc[j] = d * f;
                    }
                    da.copy_from_slice(&dx);
                }
                Cell::Elman { activation } => {
                    for j in 0..h {
                        let y = out.h[row * h + j];
                        let slope = if activation == Activation::Tanh {
                            1.0 - y * y
                        } else {
                            (y > 0.0) as u8 as f32
                        };
                        dx[j] = dh[j] * slope;
                    }
                    da.copy_from_slice(&dx);
                }
            }
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
                for j in 0..h {
                    out.d_u[k * h + j] += da[k] * v[k / h][j];
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
