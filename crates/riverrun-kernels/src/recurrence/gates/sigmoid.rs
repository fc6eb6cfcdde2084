//! The gated linear RNN: `a = σ(k_a)`, `b` as it is.

#[cfg(feature = "gpu")]
use cubecl::prelude::*;
use pulp::Simd;

#[cfg(feature = "gpu")]
use super::gpu::{Affine, InputGradients, Math};
#[cfg(feature = "check")]
use super::reference::{self, NaiveStep, Step, naive_sigmoid, round};
use super::{Coefficients, Formula, SATURATED, Visitor};
#[cfg(feature = "gpu")]
use crate::gpu::math::sigmoid;
use crate::recurrence::cost::{Pass, SIGMOIDS};
use crate::simd::real::Real;
use crate::simd::vector::Vector as SimdVector;

/// Two inputs `(k_a, b)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sigmoid;

impl Formula for Sigmoid {
    fn all() -> Vec<Self> {
        vec![Sigmoid]
    }

    fn name(self) -> &'static str {
        "sigmoid"
    }

    fn inputs(self) -> usize {
        2
    }

    fn holding(self) -> Vec<f64> {
        vec![SATURATED, 0.0]
    }

    fn backward_reads(self) -> usize {
        1
    }

    #[cfg(feature = "gpu")]
    fn cheap(self) -> bool {
        true
    }

    fn flops(self, pass: Pass) -> usize {
        match pass {
            Pass::Forward => SIGMOIDS,
            Pass::Backward => SIGMOIDS + 3,
        }
    }

    fn visit<V: Visitor>(self, visitor: V) -> V::Output {
        visitor.visit::<Sigmoid, 2>()
    }

    #[cfg(feature = "check")]
    fn reference(self, x: &[f64]) -> Step {
        let a = reference::sigmoid(x[0]);
        Step {
            a,
            b: x[1],
            da: vec![a * reference::sigmoid(-x[0]), 0.0],
            db: vec![0.0, 1.0],
        }
    }

    #[cfg(feature = "check")]
    fn naive<E: crate::Element>(self, x: &[f64], h_prev: f64, d: f64) -> NaiveStep {
        let r = round::<E>;
        let a = naive_sigmoid::<E>(x[0]);
        let slope = r(a * r(1.0 - a));
        NaiveStep {
            a,
            b: x[1],
            d_inputs: vec![r(r(d * h_prev) * slope), d],
        }
    }
}

impl Coefficients<2> for Sigmoid {
    const BACKWARD_READS: [bool; 2] = [true, false];

    #[inline(always)]
    fn forward<S: Simd, R: Real>(
        [k_a, b]: [SimdVector<S, R>; 2],
    ) -> (SimdVector<S, R>, SimdVector<S, R>) {
        (k_a.sigmoids().0, b)
    }

    #[inline(always)]
    fn backward<S: Simd, R: Real>(
        [k_a, _]: [SimdVector<S, R>; 2],
        h_prev: SimdVector<S, R>,
        d: SimdVector<S, R>,
    ) -> (SimdVector<S, R>, [SimdVector<S, R>; 2]) {
        let (a, not_a) = k_a.sigmoids();
        (a, [d * h_prev * (a * not_a), d])
    }
}

#[cfg(feature = "gpu")]
#[cube]
pub(super) fn coefficients<N: Size>(
    k_a: Vector<f32, N>,
    b: Vector<f32, N>,
    _none: Vector<f32, N>,
    #[comptime] _gate: Sigmoid,
    #[comptime] math: Math,
) -> Affine<N> {
    Affine::<N> {
        a: sigmoid::<N>(k_a, math.ptx),
        b,
    }
}

#[cfg(feature = "gpu")]
#[cube]
pub(super) fn gradients<N: Size>(
    k_a: Vector<f32, N>,
    _b: Vector<f32, N>,
    _none: Vector<f32, N>,
    h_prev: Vector<f32, N>,
    d: Vector<f32, N>,
    #[comptime] _gate: Sigmoid,
    #[comptime] math: Math,
) -> InputGradients<N> {
    let one = Vector::<f32, N>::new(1.0f32);
    let a = sigmoid::<N>(k_a, math.ptx);
    InputGradients::<N> {
        a,
        d0: d * h_prev * (a * (one - a)),
        d1: d,
        d2: Vector::<f32, N>::new(0.0f32),
    }
}
