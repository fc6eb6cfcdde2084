//! The naive computation: the textbook formulas in the storage type itself, every operation rounded to it.
//!
//! The error that a user would have without these kernels, and so the measure of a fair one.

use riverrun_kernels::recurrence::reference::round;

use super::{Case, Outcome};
use crate::Element;

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
                let step = problem.gate.naive::<E>(&inputs(t), h_prev, 0.0);
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
                let step = problem.gate.naive::<E>(&inputs(t), h_prev, total);
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
