//! The arithmetic of the gates on one element: inputs to `(a, b)`, and the gradient of a step back to the inputs.
//!
//! Each gate is a type, so that a kernel is compiled once per gate and its loops hold no choice.
//! [`Gate::visit`] turns the run-time gate into that type.

use std::marker::PhantomData;

use pulp::Simd;

use super::{Candidate, Gate};
use crate::simd::real::Real;
use crate::simd::vector::Vector;

/// A gate with `N` inputs.
pub trait Coefficients<const N: usize>: Send + Sync + 'static {
    /// Which inputs [`Coefficients::backward`] looks at.
    const BACKWARD_READS: [bool; N] = [true; N];

    /// `(a, b)` from the inputs.
    fn forward<S: Simd, R: Real>(inputs: [Vector<S, R>; N]) -> (Vector<S, R>, Vector<S, R>);

    /// From `h_{t-1}` and `D_t = ∂L/∂h_t`: `a`, and `∂L/∂input` for every input.
    fn backward<S: Simd, R: Real>(
        inputs: [Vector<S, R>; N],
        h_prev: Vector<S, R>,
        d: Vector<S, R>,
    ) -> (Vector<S, R>, [Vector<S, R>; N]);
}

/// `act` of a candidate.
pub trait Activation: Send + Sync + 'static {
    /// `act(u)`.
    fn value<S: Simd, R: Real>(u: Vector<S, R>) -> Vector<S, R>;
    /// `(act(u), act'(u))`.
    fn with_slope<S: Simd, R: Real>(u: Vector<S, R>) -> (Vector<S, R>, Vector<S, R>);
}

/// [`Candidate::Identity`].
pub struct Identity;
/// [`Candidate::Tanh`].
pub struct Tanh;
/// [`Candidate::G`].
pub struct G;

impl Activation for Identity {
    #[inline(always)]
    fn value<S: Simd, R: Real>(u: Vector<S, R>) -> Vector<S, R> {
        u
    }

    #[inline(always)]
    fn with_slope<S: Simd, R: Real>(u: Vector<S, R>) -> (Vector<S, R>, Vector<S, R>) {
        (u, u.constant(R::ONE))
    }
}

impl Activation for Tanh {
    #[inline(always)]
    fn value<S: Simd, R: Real>(u: Vector<S, R>) -> Vector<S, R> {
        u.tanh()
    }

    #[inline(always)]
    fn with_slope<S: Simd, R: Real>(u: Vector<S, R>) -> (Vector<S, R>, Vector<S, R>) {
        let y = u.tanh();
        // (1 - y)(1 + y), because 1 - y² has lost its digits where y is near ±1.
        let one = u.constant(R::ONE);
        (y, (one - y) * (one + y))
    }
}

impl Activation for G {
    #[inline(always)]
    fn value<S: Simd, R: Real>(u: Vector<S, R>) -> Vector<S, R> {
        Self::with_slope(u).0
    }

    #[inline(always)]
    fn with_slope<S: Simd, R: Real>(u: Vector<S, R>) -> (Vector<S, R>, Vector<S, R>) {
        let (s, t) = u.sigmoids();
        let (one, half) = (u.constant(R::ONE), u.constant(R::HALF));
        let negative = u.is_negative();
        (negative.select(s, u + half), negative.select(s * t, one))
    }
}

/// [`Gate::Raw`].
pub struct Raw;

impl Coefficients<2> for Raw {
    const BACKWARD_READS: [bool; 2] = [true, false];

    #[inline(always)]
    fn forward<S: Simd, R: Real>([a, b]: [Vector<S, R>; 2]) -> (Vector<S, R>, Vector<S, R>) {
        (a, b)
    }

    #[inline(always)]
    fn backward<S: Simd, R: Real>(
        [a, _]: [Vector<S, R>; 2],
        h_prev: Vector<S, R>,
        d: Vector<S, R>,
    ) -> (Vector<S, R>, [Vector<S, R>; 2]) {
        (a, [d * h_prev, d])
    }
}

/// [`Gate::Sigmoid`].
pub struct Sigmoid;

impl Coefficients<2> for Sigmoid {
    const BACKWARD_READS: [bool; 2] = [true, false];

    #[inline(always)]
    fn forward<S: Simd, R: Real>([k_a, b]: [Vector<S, R>; 2]) -> (Vector<S, R>, Vector<S, R>) {
        (k_a.sigmoids().0, b)
    }

    #[inline(always)]
    fn backward<S: Simd, R: Real>(
        [k_a, _]: [Vector<S, R>; 2],
        h_prev: Vector<S, R>,
        d: Vector<S, R>,
    ) -> (Vector<S, R>, [Vector<S, R>; 2]) {
        let (a, not_a) = k_a.sigmoids();
        (a, [d * h_prev * (a * not_a), d])
    }
}

/// [`Gate::MinGru`].
pub struct MinGru<A>(PhantomData<A>);

impl<A: Activation> Coefficients<2> for MinGru<A> {
    #[inline(always)]
    fn forward<S: Simd, R: Real>([k_z, k_h]: [Vector<S, R>; 2]) -> (Vector<S, R>, Vector<S, R>) {
        let (z, a) = k_z.sigmoids();
        (a, z * A::value(k_h))
    }

    #[inline(always)]
    fn backward<S: Simd, R: Real>(
        [k_z, k_h]: [Vector<S, R>; 2],
        h_prev: Vector<S, R>,
        d: Vector<S, R>,
    ) -> (Vector<S, R>, [Vector<S, R>; 2]) {
        let (z, a) = k_z.sigmoids();
        let (c, slope) = A::with_slope(k_h);
        let dz = d * z;
        (a, [dz * (c - h_prev) * a, dz * slope])
    }
}

/// [`Gate::MinLstm`] with `f` and `i` as they are.
pub struct MinLstm<A>(PhantomData<A>);

impl<A: Activation> Coefficients<3> for MinLstm<A> {
    #[inline(always)]
    fn forward<S: Simd, R: Real>(
        [k_f, k_i, k_h]: [Vector<S, R>; 3],
    ) -> (Vector<S, R>, Vector<S, R>) {
        let (f, _) = k_f.sigmoids();
        let (i, _) = k_i.sigmoids();
        (f, i * A::value(k_h))
    }

    #[inline(always)]
    fn backward<S: Simd, R: Real>(
        [k_f, k_i, k_h]: [Vector<S, R>; 3],
        h_prev: Vector<S, R>,
        d: Vector<S, R>,
    ) -> (Vector<S, R>, [Vector<S, R>; 3]) {
        let (f, not_f) = k_f.sigmoids();
        let (i, not_i) = k_i.sigmoids();
        let (c, slope) = A::with_slope(k_h);
        let di = d * i;
        (f, [d * h_prev * f * not_f, di * c * not_i, di * slope])
    }
}

/// [`Gate::MinLstm`] with `f' = f / (f + i)` and `i' = i / (f + i)`.
pub struct NormalizedMinLstm<A>(PhantomData<A>);

/// What the normalised gates are made of.
struct Shares<S: Simd, R: Real> {
    /// `f' = f / (f + i)`.
    forget: Vector<S, R>,
    /// `i' = i / (f + i)`.
    input: Vector<S, R>,
    /// `e^-|k_f|`.
    e_f: Vector<S, R>,
    /// `e^-|k_i|`.
    e_i: Vector<S, R>,
}

/// `f' = (1/i) / (1/f + 1/i)`, `i' = (1/f) / (1/f + 1/i)`, with `1/f = 1 + e^-k_f` and `1/i = 1 + e^-k_i` both taken
/// relative to the larger power of e in them. One of the two is then at least 1 and the other at most 2, wherever
/// `k_f` and `k_i` lie: nothing overflows, and nothing is ever 0/0. The same function as `σ(-d)` and `σ(d)` with
/// `d = softplus(-k_f) - softplus(-k_i)`, without its logarithms and their cancellation.
#[inline(always)]
fn shares<S: Simd, R: Real>(k_f: Vector<S, R>, k_i: Vector<S, R>) -> Shares<S, R> {
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
    Shares {
        forget: inverse_i * scale,
        input: inverse_f * scale,
        e_f,
        e_i,
    }
}

/// `1 - σ(k) = σ(-k)`, given `e = e^-|k|`.
#[inline(always)]
fn complement<S: Simd, R: Real>(k: Vector<S, R>, e: Vector<S, R>) -> Vector<S, R> {
    let one = k.constant(R::ONE);
    k.is_negative().select(one, e) / (one + e)
}

impl<A: Activation> Coefficients<3> for NormalizedMinLstm<A> {
    #[inline(always)]
    fn forward<S: Simd, R: Real>(
        [k_f, k_i, k_h]: [Vector<S, R>; 3],
    ) -> (Vector<S, R>, Vector<S, R>) {
        let s = shares(k_f, k_i);
        (s.forget, s.input * A::value(k_h))
    }

    #[inline(always)]
    fn backward<S: Simd, R: Real>(
        [k_f, k_i, k_h]: [Vector<S, R>; 3],
        h_prev: Vector<S, R>,
        d: Vector<S, R>,
    ) -> (Vector<S, R>, [Vector<S, R>; 3]) {
        let s = shares(k_f, k_i);
        let (c, slope) = A::with_slope(k_h);
        let di = d * s.input;
        let u = di * s.forget * (h_prev - c);
        let d_k_f = u * complement(k_f, s.e_f);
        let d_k_i = -u * complement(k_i, s.e_i);
        (s.forget, [d_k_f, d_k_i, di * slope])
    }
}

/// [`Gate::RgLru`].
pub struct RgLru;

/// `(a, √(1 - a²))` of a rate of decay, NaN kept.
#[inline(always)]
fn decay_and_share<S: Simd, R: Real>(s: Vector<S, R>) -> (Vector<S, R>, Vector<S, R>) {
    let s = s.is_negative().select(s.constant(R::ZERO), s);
    let (a, rest) = s.decay();
    (a, rest.sqrt())
}

impl Coefficients<2> for RgLru {
    #[inline(always)]
    fn forward<S: Simd, R: Real>([s, u]: [Vector<S, R>; 2]) -> (Vector<S, R>, Vector<S, R>) {
        let (a, share) = decay_and_share(s);
        (a, share * u)
    }

    #[inline(always)]
    fn backward<S: Simd, R: Real>(
        [s, u]: [Vector<S, R>; 2],
        h_prev: Vector<S, R>,
        d: Vector<S, R>,
    ) -> (Vector<S, R>, [Vector<S, R>; 2]) {
        let (a, share) = decay_and_share(s);
        // min(1 / (2 share), STEEPEST_ROOT), twice.
        let least = s.constant(R::from_f64(0.5 / Gate::STEEPEST_ROOT));
        let twice_slope = s.constant(R::ONE) / share.less(least).select(least, share);
        let d_s = d * a * (a * u * twice_slope - h_prev);
        let d_s = s.is_negative().select(s.constant(R::ZERO), d_s);
        (a, [d_s, d * share])
    }
}

/// Work to be done with a gate's type.
pub trait Visitor {
    /// What the work gives.
    type Output;

    /// Does it.
    fn visit<C: Coefficients<N>, const N: usize>(self) -> Self::Output;
}

impl Gate {
    /// Calls `visitor` with the type of this gate.
    pub(super) fn visit<V: Visitor>(self, visitor: V) -> V::Output {
        use Candidate as C;
        match self {
            Gate::Raw => visitor.visit::<Raw, 2>(),
            Gate::Sigmoid => visitor.visit::<Sigmoid, 2>(),
            Gate::MinGru {
                candidate: C::Identity,
            } => visitor.visit::<MinGru<Identity>, 2>(),
            Gate::MinGru { candidate: C::Tanh } => visitor.visit::<MinGru<Tanh>, 2>(),
            Gate::MinGru { candidate: C::G } => visitor.visit::<MinGru<G>, 2>(),
            Gate::MinLstm {
                candidate,
                normalized: false,
            } => match candidate {
                C::Identity => visitor.visit::<MinLstm<Identity>, 3>(),
                C::Tanh => visitor.visit::<MinLstm<Tanh>, 3>(),
                C::G => visitor.visit::<MinLstm<G>, 3>(),
            },
            Gate::MinLstm {
                candidate,
                normalized: true,
            } => match candidate {
                C::Identity => visitor.visit::<NormalizedMinLstm<Identity>, 3>(),
                C::Tanh => visitor.visit::<NormalizedMinLstm<Tanh>, 3>(),
                C::G => visitor.visit::<NormalizedMinLstm<G>, 3>(),
            },
            Gate::RgLru => visitor.visit::<RgLru, 2>(),
        }
    }
}
