//! The gates on the GPU: coefficients and their derivatives, in `f32`, on vectors of channels.
//!
//! The formulas are those of [`Gate`]; the CPU's are in `recurrence/coefficients.rs`.

use cubecl::prelude::*;

use crate::recurrence::{Candidate, Gate};

/// The step `S -> a S + b`.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Affine<N: Size> {
    pub a: Vector<f32, N>,
    pub b: Vector<f32, N>,
}

/// Gradients of up to three gate inputs.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct InputGradients<N: Size> {
    pub d0: Vector<f32, N>,
    pub d1: Vector<f32, N>,
    pub d2: Vector<f32, N>,
}

#[cube]
fn sigmoid<N: Size>(x: Vector<f32, N>) -> Vector<f32, N> {
    let one = Vector::<f32, N>::new(1.0f32);
    let zero = Vector::<f32, N>::new(0.0f32);
    one / (one + (zero - x).exp())
}

/// `act(u)` of the candidate.
#[cube]
fn activate<N: Size>(u: Vector<f32, N>, #[comptime] candidate: Candidate) -> Vector<f32, N> {
    if comptime!(candidate == Candidate::Identity) {
        u
    } else if comptime!(candidate == Candidate::Tanh) {
        u.tanh()
    } else {
        let zero = Vector::<f32, N>::new(0.0f32);
        let half = Vector::<f32, N>::new(0.5f32);
        select_many(u.greater_equal(&zero), u + half, sigmoid::<N>(u))
    }
}

/// `act'(u)`, from `c = act(u)` where that is enough.
#[cube]
fn activate_slope<N: Size>(
    u: Vector<f32, N>,
    c: Vector<f32, N>,
    #[comptime] candidate: Candidate,
) -> Vector<f32, N> {
    let one = Vector::<f32, N>::new(1.0f32);
    if comptime!(candidate == Candidate::Identity) {
        one
    } else if comptime!(candidate == Candidate::Tanh) {
        one - c * c
    } else {
        let zero = Vector::<f32, N>::new(0.0f32);
        select_many(u.greater_equal(&zero), one, c * (one - c))
    }
}

/// The normalised gates `(f', i')` of minLSTM as `a` and `b`.
///
/// `i / f = (1 + e^-k_f) / (1 + e^-k_i)`; both sides are scaled by `e^s`, `s = min(0, k_f, k_i)`, so that
/// no exponential overflows and the sum of the two is at least 1.
#[cube]
fn normalized_gates<N: Size>(k_f: Vector<f32, N>, k_i: Vector<f32, N>) -> Affine<N> {
    let zero = Vector::<f32, N>::new(0.0f32);
    let s = zero.min(k_f).min(k_i);
    let e_s = s.exp();
    let i = e_s + (s - k_f).exp();
    let f = e_s + (s - k_i).exp();
    let total = f + i;
    Affine::<N> {
        a: f / total,
        b: i / total,
    }
}

/// The coefficients `(a, b)` of a step.
#[cube]
pub(crate) fn coefficients<N: Size>(
    p0: Vector<f32, N>,
    p1: Vector<f32, N>,
    p2: Vector<f32, N>,
    #[comptime] gate: Gate,
) -> Affine<N> {
    let one = Vector::<f32, N>::new(1.0f32);
    match gate {
        Gate::Raw => Affine::<N> { a: p0, b: p1 },
        Gate::Sigmoid => Affine::<N> {
            a: sigmoid::<N>(p0),
            b: p1,
        },
        Gate::MinGru { candidate } => {
            let z = sigmoid::<N>(p0);
            Affine::<N> {
                a: one - z,
                b: z * activate::<N>(p1, candidate),
            }
        }
        Gate::MinLstm {
            candidate,
            normalized,
        } => {
            let c = activate::<N>(p2, candidate);
            if comptime!(normalized) {
                let gates = normalized_gates::<N>(p0, p1);
                Affine::<N> {
                    a: gates.a,
                    b: gates.b * c,
                }
            } else {
                Affine::<N> {
                    a: sigmoid::<N>(p0),
                    b: sigmoid::<N>(p1) * c,
                }
            }
        }
    }
}

/// The gradients of the inputs from the previous state and `d = ∂L/∂h_t` in full (later steps included).
#[cube]
pub(crate) fn gradients<N: Size>(
    p0: Vector<f32, N>,
    p1: Vector<f32, N>,
    p2: Vector<f32, N>,
    h_prev: Vector<f32, N>,
    d: Vector<f32, N>,
    #[comptime] gate: Gate,
) -> InputGradients<N> {
    let one = Vector::<f32, N>::new(1.0f32);
    let zero = Vector::<f32, N>::new(0.0f32);
    match gate {
        Gate::Raw => InputGradients::<N> {
            d0: d * h_prev,
            d1: d,
            d2: zero,
        },
        Gate::Sigmoid => {
            let a = sigmoid::<N>(p0);
            InputGradients::<N> {
                d0: d * h_prev * (a * (one - a)),
                d1: d,
                d2: zero,
            }
        }
        Gate::MinGru { candidate } => {
            let z = sigmoid::<N>(p0);
            let c = activate::<N>(p1, candidate);
            InputGradients::<N> {
                d0: d * (c - h_prev) * (z * (one - z)),
                d1: d * z * activate_slope::<N>(p1, c, candidate),
                d2: zero,
            }
        }
        Gate::MinLstm {
            candidate,
            normalized,
        } => {
            let c = activate::<N>(p2, candidate);
            let slope = activate_slope::<N>(p2, c, candidate);
            let f = sigmoid::<N>(p0);
            let i = sigmoid::<N>(p1);
            if comptime!(normalized) {
                let gates = normalized_gates::<N>(p0, p1);
                let u = d * (h_prev - c) * (gates.a * gates.b);
                InputGradients::<N> {
                    d0: u * (one - f),
                    d1: (zero - u) * (one - i),
                    d2: d * gates.b * slope,
                }
            } else {
                InputGradients::<N> {
                    d0: d * h_prev * (f * (one - f)),
                    d1: d * c * (i * (one - i)),
                    d2: d * i * slope,
                }
            }
        }
    }
}
