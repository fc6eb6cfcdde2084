//! The activation of the candidate in minGRU and minLSTM.

#[cfg(feature = "gpu")]
use cubecl::prelude::*;
use pulp::Simd;
use serde::{Deserialize, Serialize};

#[cfg(feature = "check")]
use super::reference::{naive_sigmoid, round, sigmoid as reference_sigmoid};
use crate::recurrence::cost::{ELEMENTARY, Pass, SIGMOIDS};
use crate::simd::real::Real;
use crate::simd::vector::Vector as SimdVector;

/// The candidate's activation `act` in minGRU and minLSTM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Candidate {
    /// `act(u) = u`: the paper's vanilla form (section 3.1.2: the tanh is dropped).
    #[default]
    Identity,
    /// `act(u) = tanh u`.
    Tanh,
    /// `act(u) = u + 1/2` for `u ≥ 0`, `σ(u)` below: always positive, the paper's log-space form (appendix B).
    G,
}

impl Candidate {
    /// Every activation.
    pub(super) const ALL: [Candidate; 3] = [Candidate::Identity, Candidate::Tanh, Candidate::G];

    /// Arithmetic operations.
    pub(super) fn flops(self, pass: Pass) -> usize {
        match (self, pass) {
            (Candidate::Identity, _) => 0,
            (Candidate::Tanh, Pass::Forward) => ELEMENTARY,
            (Candidate::Tanh, Pass::Backward) => ELEMENTARY + 3,
            (Candidate::G, Pass::Forward) => SIGMOIDS + 2,
            (Candidate::G, Pass::Backward) => SIGMOIDS + 4,
        }
    }

    /// `(act(u), act'(u))` in `f64`.
    #[cfg(feature = "check")]
    pub fn reference(self, u: f64) -> (f64, f64) {
        match self {
            Candidate::Identity => (u, 1.0),
            Candidate::Tanh => (u.tanh(), u.cosh().powi(-2)),
            Candidate::G if u >= 0.0 => (u + 0.5, 1.0),
            Candidate::G => {
                let s = reference_sigmoid(u);
                (s, s * reference_sigmoid(-u))
            }
        }
    }

    /// `(act(u), act'(u))` with every operation rounded to `E`.
    #[cfg(feature = "check")]
    pub fn naive<E: crate::Element>(self, u: f64) -> (f64, f64) {
        let r = round::<E>;
        match self {
            Candidate::Identity => (u, 1.0),
            Candidate::Tanh => {
                let y = r(u.tanh());
                (y, r(1.0 - r(y * y)))
            }
            Candidate::G if u >= 0.0 => (r(u + 0.5), 1.0),
            Candidate::G => {
                let s = naive_sigmoid::<E>(u);
                (s, r(s * r(1.0 - s)))
            }
        }
    }
}

/// A candidate's activation as a type, on the CPU.
pub(super) trait Activation: Send + Sync + 'static {
    /// `act(u)`.
    fn value<S: Simd, R: Real>(u: SimdVector<S, R>) -> SimdVector<S, R>;
    /// `(act(u), act'(u))`.
    fn with_slope<S: Simd, R: Real>(u: SimdVector<S, R>) -> (SimdVector<S, R>, SimdVector<S, R>);
}

/// [`Candidate::Identity`].
pub(super) struct CpuIdentity;
/// [`Candidate::Tanh`].
pub(super) struct CpuTanh;
/// [`Candidate::G`].
pub(super) struct CpuG;

impl Activation for CpuIdentity {
    #[inline(always)]
    fn value<S: Simd, R: Real>(u: SimdVector<S, R>) -> SimdVector<S, R> {
        u
    }

    #[inline(always)]
    fn with_slope<S: Simd, R: Real>(u: SimdVector<S, R>) -> (SimdVector<S, R>, SimdVector<S, R>) {
        (u, u.constant(R::ONE))
    }
}

impl Activation for CpuTanh {
    #[inline(always)]
    fn value<S: Simd, R: Real>(u: SimdVector<S, R>) -> SimdVector<S, R> {
        u.tanh()
    }

    #[inline(always)]
    fn with_slope<S: Simd, R: Real>(u: SimdVector<S, R>) -> (SimdVector<S, R>, SimdVector<S, R>) {
        let y = u.tanh();
        // (1 - y)(1 + y), because 1 - y² cancels where y is near ±1.
        let one = u.constant(R::ONE);
        (y, (one - y) * (one + y))
    }
}

impl Activation for CpuG {
    #[inline(always)]
    fn value<S: Simd, R: Real>(u: SimdVector<S, R>) -> SimdVector<S, R> {
        Self::with_slope(u).0
    }

    #[inline(always)]
    fn with_slope<S: Simd, R: Real>(u: SimdVector<S, R>) -> (SimdVector<S, R>, SimdVector<S, R>) {
        let (s, t) = u.sigmoids();
        let (one, half) = (u.constant(R::ONE), u.constant(R::HALF));
        let negative = u.is_negative();
        (negative.select(s, u + half), negative.select(s * t, one))
    }
}

/// `act(u)` on the GPU.
#[cfg(feature = "gpu")]
#[cube]
pub(super) fn activate<N: Size>(
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
        select_many(
            u.greater_equal(&zero),
            u + half,
            crate::gpu::math::sigmoid::<N>(u, ptx),
        )
    }
}

/// `act'(u)` on the GPU, from `c = act(u)` where that is enough.
#[cfg(feature = "gpu")]
#[cube]
pub(super) fn activate_slope<N: Size>(
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
