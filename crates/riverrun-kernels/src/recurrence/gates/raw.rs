//! `h_t = a_t h_{t-1} + b_t` with both coefficients given: the scan itself.
//!
//! Source: Martin & Cundy, *Parallelizing Linear Recurrent Neural Nets Over Sequence Length* (2018), section 2.

#[cfg(feature = "gpu")]
use cubecl::prelude::*;
use pulp::Simd;

#[cfg(feature = "gpu")]
use super::gpu::{Affine, InputGradients, Math};
#[cfg(feature = "check")]
use super::reference::{NaiveStep, Step, round};
use super::{Coefficients, Formula, Visitor};
use crate::recurrence::cost::Pass;
use crate::simd::real::Real;
use crate::simd::vector::Vector as SimdVector;

/// Two inputs `(a, b)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Raw;

impl Formula for Raw {
    fn all() -> Vec<Self> {
        vec![Raw]
    }

    fn name(self) -> &'static str {
        "raw"
    }

    fn inputs(self) -> usize {
        2
    }

    fn holding(self) -> Vec<f64> {
        vec![1.0, 0.0]
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
            Pass::Forward => 0,
            Pass::Backward => 1,
        }
    }

    fn visit<V: Visitor>(self, visitor: V) -> V::Output {
        visitor.visit::<Raw, 2>()
    }

    #[cfg(feature = "check")]
    fn reference(self, x: &[f64]) -> Step {
        Step {
            a: x[0],
            b: x[1],
            da: vec![1.0, 0.0],
            db: vec![0.0, 1.0],
        }
    }

    #[cfg(feature = "check")]
    fn naive<E: crate::Element>(self, x: &[f64], h_prev: f64, d: f64) -> NaiveStep {
        NaiveStep {
            a: x[0],
            b: x[1],
            d_inputs: vec![round::<E>(d * h_prev), d],
        }
    }

    /// `|a| < 1` of both signs.
    #[cfg(feature = "check")]
    fn sample(self, _input: usize, x: f64) -> f64 {
        x
    }
}

impl Coefficients<2> for Raw {
    const BACKWARD_READS: [bool; 2] = [true, false];

    #[inline(always)]
    fn forward<S: Simd, R: Real>(
        [a, b]: [SimdVector<S, R>; 2],
    ) -> (SimdVector<S, R>, SimdVector<S, R>) {
        (a, b)
    }

    #[inline(always)]
    fn backward<S: Simd, R: Real>(
        [a, _]: [SimdVector<S, R>; 2],
        h_prev: SimdVector<S, R>,
        d: SimdVector<S, R>,
    ) -> (SimdVector<S, R>, [SimdVector<S, R>; 2]) {
        (a, [d * h_prev, d])
    }
}

#[cfg(feature = "gpu")]
#[cube]
pub(super) fn coefficients<N: Size>(
    a: Vector<f32, N>,
    b: Vector<f32, N>,
    _none: Vector<f32, N>,
    #[comptime] _gate: Raw,
    #[comptime] _math: Math,
) -> Affine<N> {
    Affine::<N> { a, b }
}

#[cfg(feature = "gpu")]
#[cube]
pub(super) fn gradients<N: Size>(
    a: Vector<f32, N>,
    _b: Vector<f32, N>,
    _none: Vector<f32, N>,
    h_prev: Vector<f32, N>,
    d: Vector<f32, N>,
    #[comptime] _gate: Raw,
    #[comptime] _math: Math,
) -> InputGradients<N> {
    InputGradients::<N> {
        a,
        d0: d * h_prev,
        d1: d,
        d2: Vector::<f32, N>::new(0.0f32),
    }
}
