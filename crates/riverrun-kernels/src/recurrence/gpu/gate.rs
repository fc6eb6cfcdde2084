//! The gates on the GPU: coefficients and their derivatives, in `f32`, on vectors of channels.
//!
//! The formulas are those of [`Gate`]; the CPU's are in `recurrence/coefficients.rs`.

use cubecl::prelude::*;

use super::math::{exp_of_negative, reciprocal, sigmoid, square_root};
use crate::recurrence::{Candidate, Gate};

/// The step `S -> a S + b`.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Affine<N: Size> {
    pub a: Vector<f32, N>,
    pub b: Vector<f32, N>,
}

/// Gradients of up to three gate inputs, and the coefficient.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct InputGradients<N: Size> {
    /// The step's own `a`, which the gradients need anyway.
    pub a: Vector<f32, N>,
    pub d0: Vector<f32, N>,
    pub d1: Vector<f32, N>,
    pub d2: Vector<f32, N>,
}

/// `act(u)` of the candidate.
#[cube]
fn activate<N: Size>(
    u: Vector<f32, N>,
    #[comptime] candidate: Candidate,
    #[comptime] ptx: bool,
) -> Vector<f32, N> {
    if comptime!(candidate == Candidate::Identity) {
        u
    } else if comptime!(candidate == Candidate::Tanh) {
        u.tanh()
    } else {
        let zero = Vector::<f32, N>::new(0.0f32);
        let half = Vector::<f32, N>::new(0.5f32);
        select_many(u.greater_equal(&zero), u + half, sigmoid::<N>(u, ptx))
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

/// The normalised gates of minLSTM, and what their derivatives need.
#[derive(CubeType, Clone, Copy)]
struct Normalized<N: Size> {
    /// `f'`.
    f: Vector<f32, N>,
    /// `i'`.
    i: Vector<f32, N>,
    /// `∂f'/∂k_f = -∂i'/∂k_f = f' i' σ(-k_f) = f' e_f r`.
    e_f: Vector<f32, N>,
    /// `∂i'/∂k_i = -∂f'/∂k_i = f' i' σ(-k_i) = i' e_i r`.
    e_i: Vector<f32, N>,
    r: Vector<f32, N>,
}

/// Both gates at once, from two exponentials and one reciprocal.
///
/// Let `l ≤ m` be the two pre-activations, `s = min(l, 0)`, and everything scaled by `e^s`, so that no exponential
/// overflows: `P = e^s + e^(s-l) = 1 + e^-|l|` and `Q = e^s + e^(s-m)`. With `r = 1 / (P + Q)`, the gate of the smaller
/// one is `Q r`, the other `P r`; and as `σ(-l) = e^(s-l) / P` and `σ(-m) = e^(s-m) / Q`, the slopes have neither `P` nor
/// `Q` below the line, which is well, for `Q` may be 0. `P + Q` is between 1 and 4.
#[cube]
fn normalized_gates<N: Size>(
    k_f: Vector<f32, N>,
    k_i: Vector<f32, N>,
    #[comptime] ptx: bool,
) -> Normalized<N> {
    let zero = Vector::<f32, N>::new(0.0f32);
    let one = Vector::<f32, N>::new(1.0f32);
    // Not a number is never less: it stays in one of the two.
    let f_low = k_f.less_equal(&k_i);
    let low = select_many(f_low, k_f, k_i);
    let high = select_many(f_low, k_i, k_f);
    let x = exp_of_negative::<N>(low.abs(), ptx);
    let y = exp_of_negative::<N>(high - low.min(zero), ptx);
    let positive = low.greater_equal(&zero);
    let p = one + x;
    let q = select_many(positive, one, x) + y;
    let r = reciprocal::<N>(p + q, ptx);
    let e_low = select_many(positive, x, one);
    Normalized::<N> {
        f: select_many(f_low, q, p) * r,
        i: select_many(f_low, p, q) * r,
        e_f: select_many(f_low, e_low, y),
        e_i: select_many(f_low, y, e_low),
        r,
    }
}

/// Where the RG-LRU's series ends.
const SERIES_END: f32 = 0.5;

/// The `√(1 - a²)` at which its slope has reached the steepest that is taken.
const LEAST_SHARE: f32 = 0.5 / Gate::STEEPEST_ROOT as f32;

/// `a = e^-s` and `√(1 - a²)` as `b`, for a rate of decay, which counts as 0 where it is negative.
///
/// `1 - a² = 2 a sinh s`: the series of the sine up to `s⁷` where the difference would lose digits, which leaves out
/// less than `2⁻²⁶`. The device's own hyperbolic functions are differences of exponentials on some drivers.
#[cube]
fn decay_and_share<N: Size>(s: Vector<f32, N>, #[comptime] ptx: bool) -> Affine<N> {
    let zero = Vector::<f32, N>::new(0.0f32);
    let one = Vector::<f32, N>::new(1.0f32);
    let end = Vector::<f32, N>::new(SERIES_END);
    let s = select_many(s.less_than(&zero), zero, s);
    let a = exp_of_negative::<N>(s, ptx);
    // Twice the series of `sinh s / s`.
    let square = s * s;
    let series = Vector::<f32, N>::new(0.016_666_668f32)
        + square * Vector::<f32, N>::new(0.000_396_825_4f32);
    let series = Vector::<f32, N>::new(0.333_333_34f32) + square * series;
    let near = s * a * (Vector::<f32, N>::new(2.0f32) + square * series);
    let rest = select_many(s.less_than(&end), near, fma(zero - a, a, one));
    Affine::<N> {
        a,
        b: square_root::<N>(rest, ptx),
    }
}

/// The coefficients `(a, b)` of a step.
#[cube]
pub(crate) fn coefficients<N: Size>(
    p0: Vector<f32, N>,
    p1: Vector<f32, N>,
    p2: Vector<f32, N>,
    #[comptime] gate: Gate,
    #[comptime] ptx: bool,
) -> Affine<N> {
    match gate {
        Gate::Raw => Affine::<N> { a: p0, b: p1 },
        Gate::Sigmoid => Affine::<N> {
            a: sigmoid::<N>(p0, ptx),
            b: p1,
        },
        Gate::MinGru { candidate } => {
            let z = sigmoid::<N>(p0, ptx);
            Affine::<N> {
                a: Vector::<f32, N>::new(1.0f32) - z,
                b: z * activate::<N>(p1, candidate, ptx),
            }
        }
        Gate::MinLstm {
            candidate,
            normalized,
        } => {
            let c = activate::<N>(p2, candidate, ptx);
            if comptime!(normalized) {
                let gates = normalized_gates::<N>(p0, p1, ptx);
                Affine::<N> {
                    a: gates.f,
                    b: gates.i * c,
                }
            } else {
                Affine::<N> {
                    a: sigmoid::<N>(p0, ptx),
                    b: sigmoid::<N>(p1, ptx) * c,
                }
            }
        }
        Gate::RgLru => {
            let decay = decay_and_share::<N>(p0, ptx);
            Affine::<N> {
                a: decay.a,
                b: decay.b * p1,
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
    #[comptime] ptx: bool,
) -> InputGradients<N> {
    let one = Vector::<f32, N>::new(1.0f32);
    let zero = Vector::<f32, N>::new(0.0f32);
    match gate {
        Gate::Raw => InputGradients::<N> {
            a: p0,
            d0: d * h_prev,
            d1: d,
            d2: zero,
        },
        Gate::Sigmoid => {
            let a = sigmoid::<N>(p0, ptx);
            InputGradients::<N> {
                a,
                d0: d * h_prev * (a * (one - a)),
                d1: d,
                d2: zero,
            }
        }
        Gate::MinGru { candidate } => {
            let z = sigmoid::<N>(p0, ptx);
            let c = activate::<N>(p1, candidate, ptx);
            InputGradients::<N> {
                a: one - z,
                d0: d * (c - h_prev) * (z * (one - z)),
                d1: d * z * activate_slope::<N>(p1, c, candidate),
                d2: zero,
            }
        }
        Gate::MinLstm {
            candidate,
            normalized,
        } => {
            let c = activate::<N>(p2, candidate, ptx);
            let slope = activate_slope::<N>(p2, c, candidate);
            if comptime!(normalized) {
                let gates = normalized_gates::<N>(p0, p1, ptx);
                let u = d * (h_prev - c) * gates.r;
                InputGradients::<N> {
                    a: gates.f,
                    d0: u * (gates.f * gates.e_f),
                    d1: (zero - u) * (gates.i * gates.e_i),
                    d2: d * gates.i * slope,
                }
            } else {
                let f = sigmoid::<N>(p0, ptx);
                let i = sigmoid::<N>(p1, ptx);
                InputGradients::<N> {
                    a: f,
                    d0: d * h_prev * (f * (one - f)),
                    d1: d * c * (i * (one - i)),
                    d2: d * i * slope,
                }
            }
        }
        Gate::RgLru => {
            let decay = decay_and_share::<N>(p0, ptx);
            // min(1 / (2 share), STEEPEST_ROOT), twice.
            let least = Vector::<f32, N>::new(LEAST_SHARE);
            let twice_slope = reciprocal::<N>(decay.b.max(least), ptx);
            let d_s = d * decay.a * (decay.a * p1 * twice_slope - h_prev);
            InputGradients::<N> {
                a: decay.a,
                d0: select_many(p0.less_than(&zero), zero, d_s),
                d1: d * decay.b,
                d2: zero,
            }
        }
    }
}
