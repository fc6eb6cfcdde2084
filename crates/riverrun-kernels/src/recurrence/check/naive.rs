//! The naive computation: the textbook formulas in the storage type itself, every operation rounded to it.
//!
//! What a user would get without these kernels, and so the measure of what error is fair.

use super::{Case, Outcome};
use crate::Element;
use crate::recurrence::{Candidate, Gate};

/// `f` on numbers of the storage type, rounded to it.
fn round<E: Element>(x: f64) -> f64 {
    E::from_f64(x).to_f64()
}

fn sigmoid<E: Element>(x: f64) -> f64 {
    round::<E>(1.0 / round::<E>(1.0 + round::<E>((-x).exp())))
}

/// `(act(u), act'(u))`.
fn activation<E: Element>(candidate: Candidate, u: f64) -> (f64, f64) {
    let r = round::<E>;
    match candidate {
        Candidate::Identity => (u, 1.0),
        Candidate::Tanh => {
            let y = r(u.tanh());
            (y, r(1.0 - r(y * y)))
        }
        Candidate::G if u >= 0.0 => (r(u + 0.5), 1.0),
        Candidate::G => {
            let s = sigmoid::<E>(u);
            (s, r(s * r(1.0 - s)))
        }
    }
}

/// The coefficients of a step, and the gradients of its inputs.
struct Step {
    a: f64,
    b: f64,
    d_inputs: Vec<f64>,
}

fn step<E: Element>(gate: Gate, x: &[f64], h_prev: f64, d: f64) -> Step {
    let r = round::<E>;
    let s = sigmoid::<E>;
    match gate {
        Gate::Raw => Step {
            a: x[0],
            b: x[1],
            d_inputs: vec![r(d * h_prev), d],
        },
        Gate::Sigmoid => {
            let a = s(x[0]);
            let slope = r(a * r(1.0 - a));
            Step {
                a,
                b: x[1],
                d_inputs: vec![r(r(d * h_prev) * slope), d],
            }
        }
        Gate::MinGru { candidate } => {
            let z = s(x[0]);
            let (c, slope) = activation::<E>(candidate, x[1]);
            let d_z = r(d * r(c - h_prev));
            let d_k_z = r(d_z * r(z * r(1.0 - z)));
            Step {
                a: r(1.0 - z),
                b: r(z * c),
                d_inputs: vec![d_k_z, r(r(d * z) * slope)],
            }
        }
        Gate::MinLstm {
            candidate,
            normalized: false,
        } => {
            let (f, i) = (s(x[0]), s(x[1]));
            let (c, slope) = activation::<E>(candidate, x[2]);
            let d_k_f = r(r(d * h_prev) * r(f * r(1.0 - f)));
            let d_k_i = r(r(d * c) * r(i * r(1.0 - i)));
            Step {
                a: f,
                b: r(i * c),
                d_inputs: vec![d_k_f, d_k_i, r(r(d * i) * slope)],
            }
        }
        Gate::MinLstm {
            candidate,
            normalized: true,
        } => {
            let (f, i) = (s(x[0]), s(x[1]));
            let sum = r(f + i);
            let (share_f, share_i) = (r(f / sum), r(i / sum));
            let (c, slope) = activation::<E>(candidate, x[2]);
            let u = r(r(d * r(h_prev - c)) * r(share_f * share_i));
            let d_k_f = r(u * r(1.0 - f));
            let d_k_i = -r(u * r(1.0 - i));
            let d_k_h = r(r(d * share_i) * slope);
            Step {
                a: share_f,
                b: r(share_i * c),
                d_inputs: vec![d_k_f, d_k_i, d_k_h],
            }
        }
        Gate::RgLru => {
            let a = r((-x[0].max(0.0)).exp());
            let square = r(a * a);
            let share = r(r(1.0 - square).sqrt());
            let slope = r(0.5 / share).min(Gate::STEEPEST_ROOT);
            let d_a = r(d * h_prev);
            let d_square = -r(r(d * x[1]) * slope);
            let d_s = -r(r(d_a * a) + r(d_square * r(2.0 * square)));
            Step {
                a,
                b: r(share * x[1]),
                d_inputs: vec![if x[0] < 0.0 { 0.0 } else { d_s }, r(d * share)],
            }
        }
    }
}

/// Forward and backward of a case whose data are numbers of the storage type.
pub fn run<E: Element>(case: &Case) -> Outcome {
    let r = round::<E>;
    let (problem, shape) = (&case.problem, case.problem.shape);
    let mut h = vec![0.0; shape.elements()];
    let mut h_last = vec![0.0; shape.state()];
    let mut d_inputs = vec![vec![0.0; shape.elements()]; case.inputs.len()];
    let mut d_h0 = vec![0.0; shape.state()];
    let time = |s: usize| {
        if problem.reverse {
            shape.steps - 1 - s
        } else {
            s
        }
    };

    for b in 0..shape.batch {
        for d in 0..shape.dim {
            let at = |t: usize| (b * shape.steps + t) * shape.dim + d;
            let reset = |t: usize| case.reset.as_ref().is_some_and(|r| r[b * shape.steps + t]);
            let state = b * shape.dim + d;
            let h0 = case.h0.as_ref().map_or(0.0, |h0| h0[state]);
            let inputs = |t: usize| case.inputs.iter().map(|x| x[at(t)]).collect::<Vec<_>>();

            let mut carry = h0;
            for t in (0..shape.steps).map(time) {
                let h_prev = if reset(t) { 0.0 } else { carry };
                let step = step::<E>(problem.gate, &inputs(t), h_prev, 0.0);
                carry = r(r(step.a * h_prev) + step.b);
                h[at(t)] = carry;
            }
            h_last[state] = carry;

            let mut later = case.d_h_last.as_ref().map_or(0.0, |d| d[state]);
            for s in (0..shape.steps).rev() {
                let t = time(s);
                let h_prev = match s {
                    _ if reset(t) => 0.0,
                    0 => h0,
                    _ => h[at(time(s - 1))],
                };
                let total = r(case.d_h[at(t)] + later);
                let step = step::<E>(problem.gate, &inputs(t), h_prev, total);
                for (d_input, d) in d_inputs.iter_mut().zip(step.d_inputs) {
                    d_input[at(t)] = d;
                }
                later = if reset(t) { 0.0 } else { r(step.a * total) };
            }
            d_h0[state] = later;
        }
    }
    Outcome {
        h,
        h_last,
        d_inputs,
        d_h0,
    }
}
