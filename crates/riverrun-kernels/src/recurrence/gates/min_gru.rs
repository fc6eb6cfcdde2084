//! minGRU: `z = σ(k_z)`, `h_t = (1 - z) h_{t-1} + z · act(k_h)`.
//!
//! Source: Feng et al., *Were RNNs All We Needed?* (2024), section 3.1.

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
use crate::gpu::math::sigmoid;
use crate::recurrence::cost::{Pass, SIGMOIDS};
use crate::simd::real::Real;
use crate::simd::vector::Vector as SimdVector;

/// Two inputs `(k_z, k_h)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MinGru {
    /// The candidate's activation.
    pub candidate: Candidate,
}

impl Formula for MinGru {
    fn all() -> Vec<Self> {
        let forms = Candidate::ALL.map(|candidate| Self { candidate });
        forms.to_vec()
    }

    fn name(self) -> &'static str {
        match self.candidate {
            Candidate::Identity => "min-gru",
            Candidate::Tanh => "min-gru-tanh",
            Candidate::G => "min-gru-g",
        }
    }

    fn inputs(self) -> usize {
        2
    }

    fn holding(self) -> Vec<f64> {
        vec![-SATURATED, 0.0]
    }

    #[cfg(feature = "gpu")]
    fn cheap(self) -> bool {
        true
    }

    fn flops(self, pass: Pass) -> usize {
        let own = match pass {
            Pass::Forward => 1,
            Pass::Backward => 5,
        };
        SIGMOIDS + self.candidate.flops(pass) + own
    }

    fn visit<V: Visitor>(self, visitor: V) -> V::Output {
        match self.candidate {
            Candidate::Identity => visitor.visit::<Channels<CpuIdentity>, 2>(),
            Candidate::Tanh => visitor.visit::<Channels<CpuTanh>, 2>(),
            Candidate::G => visitor.visit::<Channels<CpuG>, 2>(),
        }
    }

    #[cfg(feature = "check")]
    fn reference(self, x: &[f64]) -> Step {
        let (z, not_z) = (reference::sigmoid(x[0]), reference::sigmoid(-x[0]));
        let (c, slope) = self.candidate.reference(x[1]);
        let dz = z * not_z;
        Step {
            a: not_z,
            b: z * c,
            da: vec![-dz, 0.0],
            db: vec![dz * c, z * slope],
        }
    }

    #[cfg(feature = "check")]
    fn naive<E: crate::Element>(self, x: &[f64], h_prev: f64, d: f64) -> NaiveStep {
        let r = round::<E>;
        let z = naive_sigmoid::<E>(x[0]);
        let (c, slope) = self.candidate.naive::<E>(x[1]);
        let d_z = r(d * r(c - h_prev));
        let d_k_z = r(d_z * r(z * r(1.0 - z)));
        NaiveStep {
            a: r(1.0 - z),
            b: r(z * c),
            d_inputs: vec![d_k_z, r(r(d * z) * slope)],
        }
    }
}

/// The CPU's coefficients.
struct Channels<A>(PhantomData<A>);

impl<A: Activation> Coefficients<2> for Channels<A> {
    #[inline(always)]
    fn forward<S: Simd, R: Real>(
        [k_z, k_h]: [SimdVector<S, R>; 2],
    ) -> (SimdVector<S, R>, SimdVector<S, R>) {
        let (z, a) = k_z.sigmoids();
        (a, z * A::value(k_h))
    }

    #[inline(always)]
    fn backward<S: Simd, R: Real>(
        [k_z, k_h]: [SimdVector<S, R>; 2],
        h_prev: SimdVector<S, R>,
        d: SimdVector<S, R>,
    ) -> (SimdVector<S, R>, [SimdVector<S, R>; 2]) {
        let (z, a) = k_z.sigmoids();
        let (c, slope) = A::with_slope(k_h);
        let dz = d * z;
        (a, [dz * (c - h_prev) * a, dz * slope])
    }
}

#[cfg(feature = "gpu")]
#[cube]
pub(super) fn coefficients<N: Size>(
    k_z: Vector<f32, N>,
    k_h: Vector<f32, N>,
    _none: Vector<f32, N>,
    #[comptime] gate: MinGru,
    #[comptime] math: Math,
) -> Affine<N> {
    let z = sigmoid::<N>(k_z, math.ptx);
    Affine::<N> {
        a: Vector::<f32, N>::new(1.0f32) - z,
        b: z * activate::<N>(k_h, gate.candidate, math.ptx),
    }
}

#[cfg(feature = "gpu")]
#[cube]
pub(super) fn gradients<N: Size>(
    k_z: Vector<f32, N>,
    k_h: Vector<f32, N>,
    _none: Vector<f32, N>,
    h_prev: Vector<f32, N>,
    d: Vector<f32, N>,
    #[comptime] gate: MinGru,
    #[comptime] math: Math,
) -> InputGradients<N> {
    let one = Vector::<f32, N>::new(1.0f32);
    let z = sigmoid::<N>(k_z, math.ptx);
    let c = activate::<N>(k_h, gate.candidate, math.ptx);
    InputGradients::<N> {
        a: one - z,
        d0: d * (c - h_prev) * (z * (one - z)),
        d1: d * z * activate_slope::<N>(k_h, c, gate.candidate),
        d2: Vector::<f32, N>::new(0.0f32),
    }
}
