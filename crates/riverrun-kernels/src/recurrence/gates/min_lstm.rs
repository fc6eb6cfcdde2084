//! minLSTM: `h_t = f' h_{t-1} + i' · act(k_h)` with `f = σ(k_f)`, `i = σ(k_i)`; normalised, `f' = f / (f + i)` and
//! `i' = i / (f + i)`, else `f' = f` and `i' = i`.
//!
//! The normalised gates are `f' = σ(-d)` and `i' = σ(d)` with `d = softplus(-k_f) - softplus(-k_i)`, which holds where
//! both gates underflow.
//!
//! Source: Feng et al., *Were RNNs All We Needed?* (2024), section 3.2.

use std::marker::PhantomData;

#[cfg(feature = "gpu")]
use cubecl::prelude::*;
use pulp::Simd;

use super::candidate::{Activation, CpuG, CpuIdentity, CpuTanh};
#[cfg(feature = "gpu")]
use super::candidate::{activate, activate_slope};
#[cfg(feature = "gpu")]
use super::gpu::{Affine, InputGradients, Math};
#[cfg(feature = "check")]
use super::reference::{self, NaiveStep, Step, naive_sigmoid, round};
use super::{Candidate, Coefficients, Formula, SATURATED, Visitor};
#[cfg(feature = "gpu")]
use crate::gpu::math::{exp_of_negative, reciprocal, sigmoid};
use crate::recurrence::cost::{ELEMENTARY, Pass, SIGMOIDS};
use crate::simd::real::Real;
use crate::simd::vector::Vector as SimdVector;

/// Three inputs `(k_f, k_i, k_h)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MinLstm {
    /// The candidate's activation.
    pub candidate: Candidate,
    /// Whether `f' + i' = 1`.
    pub normalized: bool,
}

impl Formula for MinLstm {
    fn all() -> Vec<Self> {
        let mut forms = Vec::new();
        for normalized in [true, false] {
            forms.extend(Candidate::ALL.map(|candidate| Self {
                candidate,
                normalized,
            }));
        }
        forms
    }

    fn name(self) -> &'static str {
        match (self.candidate, self.normalized) {
            (Candidate::Identity, true) => "min-lstm",
            (Candidate::Tanh, true) => "min-lstm-tanh",
            (Candidate::G, true) => "min-lstm-g",
            (Candidate::Identity, false) => "min-lstm-raw",
            (Candidate::Tanh, false) => "min-lstm-raw-tanh",
            (Candidate::G, false) => "min-lstm-raw-g",
        }
    }

    fn inputs(self) -> usize {
        3
    }

    fn holding(self) -> Vec<f64> {
        vec![SATURATED, -SATURATED, 0.0]
    }

    #[cfg(feature = "gpu")]
    fn cheap(self) -> bool {
        false
    }

    fn flops(self, pass: Pass) -> usize {
        // Three exponentials, max(-k, 0) twice, the difference, two choices, two sums, two products; then a sum, a
        // division and two products.
        let both = 3 * ELEMENTARY + 2 + 1 + 2 + 2 + 2 + 4;
        let gates = if self.normalized { both } else { 2 * SIGMOIDS };
        let complements = if self.normalized { 2 * 3 } else { 0 };
        let own = match pass {
            Pass::Forward => 1,
            Pass::Backward => 7 + complements,
        };
        gates + self.candidate.flops(pass) + own
    }

    fn visit<V: Visitor>(self, visitor: V) -> V::Output {
        match (self.candidate, self.normalized) {
            (Candidate::Identity, false) => visitor.visit::<Plain<CpuIdentity>, 3>(),
            (Candidate::Tanh, false) => visitor.visit::<Plain<CpuTanh>, 3>(),
            (Candidate::G, false) => visitor.visit::<Plain<CpuG>, 3>(),
            (Candidate::Identity, true) => visitor.visit::<Normalized<CpuIdentity>, 3>(),
            (Candidate::Tanh, true) => visitor.visit::<Normalized<CpuTanh>, 3>(),
            (Candidate::G, true) => visitor.visit::<Normalized<CpuG>, 3>(),
        }
    }

    #[cfg(feature = "check")]
    fn reference(self, x: &[f64]) -> Step {
        use reference::{sigmoid, softplus};
        let (k_f, k_i, k_h) = (x[0], x[1], x[2]);
        let (c, slope) = self.candidate.reference(k_h);
        if self.normalized {
            let d = softplus(-k_f) - softplus(-k_i);
            let (f, i) = (sigmoid(-d), sigmoid(d));
            // f' and i' depend on d alone: ∂f'/∂d = -f' i', ∂i'/∂d = f' i', ∂d/∂k_f = -σ(-k_f), ∂d/∂k_i = σ(-k_i).
            let (dk_f, dk_i) = (f * i * sigmoid(-k_f), -f * i * sigmoid(-k_i));
            return Step {
                a: f,
                b: i * c,
                da: vec![dk_f, dk_i, 0.0],
                db: vec![-dk_f * c, -dk_i * c, i * slope],
            };
        }
        let (f, i) = (sigmoid(k_f), sigmoid(k_i));
        let (df, di) = (f * sigmoid(-k_f), i * sigmoid(-k_i));
        Step {
            a: f,
            b: i * c,
            da: vec![df, 0.0, 0.0],
            db: vec![0.0, di * c, i * slope],
        }
    }

    #[cfg(feature = "check")]
    fn naive<E: crate::Element>(self, x: &[f64], h_prev: f64, d: f64) -> NaiveStep {
        let r = round::<E>;
        let (f, i) = (naive_sigmoid::<E>(x[0]), naive_sigmoid::<E>(x[1]));
        let (c, slope) = self.candidate.naive::<E>(x[2]);
        if self.normalized {
            let sum = r(f + i);
            let (part_f, part_i) = (r(f / sum), r(i / sum));
            let u = r(r(d * r(h_prev - c)) * r(part_f * part_i));
            let d_k_f = r(u * r(1.0 - f));
            let d_k_i = -r(u * r(1.0 - i));
            let d_k_h = r(r(d * part_i) * slope);
            return NaiveStep {
                a: part_f,
                b: r(part_i * c),
                d_inputs: vec![d_k_f, d_k_i, d_k_h],
            };
        }
        let d_k_f = r(r(d * h_prev) * r(f * r(1.0 - f)));
        let d_k_i = r(r(d * c) * r(i * r(1.0 - i)));
        NaiveStep {
            a: f,
            b: r(i * c),
            d_inputs: vec![d_k_f, d_k_i, r(r(d * i) * slope)],
        }
    }
}

/// The CPU's coefficients with `f` and `i` as they are.
struct Plain<A>(PhantomData<A>);

impl<A: Activation> Coefficients<3> for Plain<A> {
    #[inline(always)]
    fn forward<S: Simd, R: Real>(
        [k_f, k_i, k_h]: [SimdVector<S, R>; 3],
    ) -> (SimdVector<S, R>, SimdVector<S, R>) {
        let (f, _) = k_f.sigmoids();
        let (i, _) = k_i.sigmoids();
        (f, i * A::value(k_h))
    }

    #[inline(always)]
    fn backward<S: Simd, R: Real>(
        [k_f, k_i, k_h]: [SimdVector<S, R>; 3],
        h_prev: SimdVector<S, R>,
        d: SimdVector<S, R>,
    ) -> (SimdVector<S, R>, [SimdVector<S, R>; 3]) {
        let (f, not_f) = k_f.sigmoids();
        let (i, not_i) = k_i.sigmoids();
        let (c, slope) = A::with_slope(k_h);
        let di = d * i;
        (f, [d * h_prev * f * not_f, di * c * not_i, di * slope])
    }
}

/// The CPU's coefficients with normalised gates.
struct Normalized<A>(PhantomData<A>);

/// The normalised gates, and what their derivatives need.
struct ChannelGates<S: Simd, R: Real> {
    /// `f' = f / (f + i)`.
    forget: SimdVector<S, R>,
    /// `i' = i / (f + i)`.
    input: SimdVector<S, R>,
    /// `e^-|k_f|`.
    e_f: SimdVector<S, R>,
    /// `e^-|k_i|`.
    e_i: SimdVector<S, R>,
}

/// `f' = (1/i) / (1/f + 1/i)`, `i' = (1/f) / (1/f + 1/i)`, with `1/f = 1 + e^-k_f` and `1/i = 1 + e^-k_i` both taken
/// relative to the larger power of e in them. One of the two is then at least 1 and the other at most 2, wherever
/// `k_f` and `k_i` lie: nothing overflows, and nothing is ever 0/0. The same function as `σ(-d)` and `σ(d)` with
/// `d = softplus(-k_f) - softplus(-k_i)`, without its logarithms and their cancellation.
#[inline(always)]
fn channel_gates<S: Simd, R: Real>(
    k_f: SimdVector<S, R>,
    k_i: SimdVector<S, R>,
) -> ChannelGates<S, R> {
    let (zero, one) = (k_f.constant(R::ZERO), k_f.constant(R::ONE));
    // 1/f = e^max(-k_f, 0) (1 + e^-|k_f|).
    let (e_f, e_i) = (k_f.exp_decay(), k_i.exp_decay());
    let power_f = k_f.is_negative().select(-k_f, zero);
    let power_i = k_i.is_negative().select(-k_i, zero);
    let apart = power_f - power_i;
    let smaller = apart.exp_decay();
    let f_is_smaller = apart.is_negative();
    let inverse_f = (one + e_f) * f_is_smaller.select(smaller, one);
    let inverse_i = (one + e_i) * f_is_smaller.select(one, smaller);
    let scale = one / (inverse_f + inverse_i);
    ChannelGates {
        forget: inverse_i * scale,
        input: inverse_f * scale,
        e_f,
        e_i,
    }
}

/// `1 - σ(k) = σ(-k)`, given `e = e^-|k|`.
#[inline(always)]
fn complement<S: Simd, R: Real>(k: SimdVector<S, R>, e: SimdVector<S, R>) -> SimdVector<S, R> {
    let one = k.constant(R::ONE);
    k.is_negative().select(one, e) / (one + e)
}

impl<A: Activation> Coefficients<3> for Normalized<A> {
    #[inline(always)]
    fn forward<S: Simd, R: Real>(
        [k_f, k_i, k_h]: [SimdVector<S, R>; 3],
    ) -> (SimdVector<S, R>, SimdVector<S, R>) {
        let gates = channel_gates(k_f, k_i);
        (gates.forget, gates.input * A::value(k_h))
    }

    #[inline(always)]
    fn backward<S: Simd, R: Real>(
        [k_f, k_i, k_h]: [SimdVector<S, R>; 3],
        h_prev: SimdVector<S, R>,
        d: SimdVector<S, R>,
    ) -> (SimdVector<S, R>, [SimdVector<S, R>; 3]) {
        let gates = channel_gates(k_f, k_i);
        let (c, slope) = A::with_slope(k_h);
        let di = d * gates.input;
        let u = di * gates.forget * (h_prev - c);
        let d_k_f = u * complement(k_f, gates.e_f);
        let d_k_i = -u * complement(k_i, gates.e_i);
        (gates.forget, [d_k_f, d_k_i, di * slope])
    }
}

/// The normalised gates on the GPU, and what their derivatives need.
#[cfg(feature = "gpu")]
#[derive(CubeType, Clone, Copy)]
struct GpuGates<N: Size> {
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
/// one is `Q r`, the other `P r`; and as `σ(-l) = e^(s-l) / P` and `σ(-m) = e^(s-m) / Q`, the slopes need no division by
/// `P` or by `Q`, which can underflow to 0. `P + Q` is between 1 and 4.
#[cfg(feature = "gpu")]
#[cube]
fn normalized_gates<N: Size>(
    k_f: Vector<f32, N>,
    k_i: Vector<f32, N>,
    #[comptime] ptx: bool,
) -> GpuGates<N> {
    let zero = Vector::<f32, N>::new(0.0f32);
    let one = Vector::<f32, N>::new(1.0f32);
    // NaN is never less: it stays in one of the two.
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
    GpuGates::<N> {
        f: select_many(f_low, q, p) * r,
        i: select_many(f_low, p, q) * r,
        e_f: select_many(f_low, e_low, y),
        e_i: select_many(f_low, y, e_low),
        r,
    }
}

#[cfg(feature = "gpu")]
#[cube]
pub(super) fn coefficients<N: Size>(
    k_f: Vector<f32, N>,
    k_i: Vector<f32, N>,
    k_h: Vector<f32, N>,
    #[comptime] gate: MinLstm,
    #[comptime] math: Math,
) -> Affine<N> {
    let c = activate::<N>(k_h, gate.candidate, math.ptx);
    if comptime!(gate.normalized) {
        let gates = normalized_gates::<N>(k_f, k_i, math.ptx);
        Affine::<N> {
            a: gates.f,
            b: gates.i * c,
        }
    } else {
        Affine::<N> {
            a: sigmoid::<N>(k_f, math.ptx),
            b: sigmoid::<N>(k_i, math.ptx) * c,
        }
    }
}

#[cfg(feature = "gpu")]
#[cube]
pub(super) fn gradients<N: Size>(
    k_f: Vector<f32, N>,
    k_i: Vector<f32, N>,
    k_h: Vector<f32, N>,
    h_prev: Vector<f32, N>,
    d: Vector<f32, N>,
    #[comptime] gate: MinLstm,
    #[comptime] math: Math,
) -> InputGradients<N> {
    let one = Vector::<f32, N>::new(1.0f32);
    let c = activate::<N>(k_h, gate.candidate, math.ptx);
    let slope = activate_slope::<N>(k_h, c, gate.candidate);
    if comptime!(gate.normalized) {
        let gates = normalized_gates::<N>(k_f, k_i, math.ptx);
        let u = d * (c - h_prev) * gates.r;
        InputGradients::<N> {
            a: gates.f,
            d0: -u * (gates.f * gates.e_f),
            d1: u * (gates.i * gates.e_i),
            d2: d * gates.i * slope,
        }
    } else {
        let f = sigmoid::<N>(k_f, math.ptx);
        let i = sigmoid::<N>(k_i, math.ptx);
        InputGradients::<N> {
            a: f,
            d0: d * h_prev * (f * (one - f)),
            d1: d * c * (i * (one - i)),
            d2: d * i * slope,
        }
    }
}
