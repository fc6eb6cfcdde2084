//! The RG-LRU: `a = e^-s`, `b = √(1 - a²) · u`.
//!
//! `1 - a²` is computed as `1 - e^-2s` in full precision, however small `s` is. The slope of its square root is infinite at `s
//! = 0`; the gradient takes at most [`Gate::STEEPEST_ROOT`] for it, as the authors' own code does: `∂b/∂s = 2 a² · min(1 / (2
//! √(1 - a²)), STEEPEST_ROOT) · u`, which differs from the derivative only for `s` below `1.25e-7`, and for `s < 0` is 0 as
//! `∂a/∂s` is.
//!
//! Source: De et al., *Griffin: Mixing Gated Linear Recurrences with Local Attention for Efficient Language Models*
//! (2024), section 2.4 and appendix A.

#[cfg(feature = "gpu")]
use cubecl::prelude::*;
use pulp::Simd;

#[cfg(feature = "gpu")]
use super::gpu::{Affine, InputGradients, Math};
#[cfg(feature = "check")]
use super::reference::{NaiveStep, Step, round};
use super::{Coefficients, Formula, Gate, Visitor};
#[cfg(feature = "gpu")]
use crate::gpu::math::{
    exp_of_negative, inverse_square_root, larger_or_nan, reciprocal, square_root,
};
use crate::recurrence::cost::{ELEMENTARY, Pass};
use crate::simd::real::Real;
use crate::simd::vector::Vector as SimdVector;

/// Two inputs `(s, u)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RgLru;

impl Formula for RgLru {
    fn all() -> Vec<Self> {
        vec![RgLru]
    }

    fn name(self) -> &'static str {
        "rg-lru"
    }

    fn inputs(self) -> usize {
        2
    }

    fn holding(self) -> Vec<f64> {
        vec![0.0, 0.0]
    }

    #[cfg(feature = "gpu")]
    fn cheap(self) -> bool {
        false
    }

    fn flops(self, pass: Pass) -> usize {
        // max(s, 0), an exponential, the series (a square, two products and a sum thrice), `2 s` times it times `a`, the
        // difference as two sums and a product, a choice, a square root.
        let decay = 1 + ELEMENTARY + 7 + 3 + 3 + 1 + 1;
        match pass {
            Pass::Forward => decay + 1,
            // A choice and a division for the slope, `d a`, `a u`, times the slope, less h, times, a choice, and `d √`.
            Pass::Backward => decay + 2 + 6 + 1,
        }
    }

    fn visit<V: Visitor>(self, visitor: V) -> V::Output {
        visitor.visit::<RgLru, 2>()
    }

    #[cfg(feature = "check")]
    fn reference(self, x: &[f64]) -> Step {
        let (s, u) = (x[0], x[1]);
        if s < 0.0 {
            return Step {
                a: 1.0,
                b: 0.0,
                da: vec![0.0; 2],
                db: vec![0.0; 2],
            };
        }
        let a = (-s).exp();
        let rest = -(-2.0 * s).exp_m1();
        let slope = (0.5 / rest.sqrt()).min(Gate::STEEPEST_ROOT);
        Step {
            a,
            b: rest.sqrt() * u,
            da: vec![-a, 0.0],
            db: vec![2.0 * a * a * slope * u, rest.sqrt()],
        }
    }

    #[cfg(feature = "check")]
    fn naive<E: crate::Element>(self, x: &[f64], h_prev: f64, d: f64) -> NaiveStep {
        let r = round::<E>;
        let a = r((-x[0].max(0.0)).exp());
        let square = r(a * a);
        let input = r(r(1.0 - square).sqrt());
        let slope = r(0.5 / input).min(Gate::STEEPEST_ROOT);
        let d_a = r(d * h_prev);
        let d_square = -r(r(d * x[1]) * slope);
        let d_s = -r(r(d_a * a) + r(d_square * r(2.0 * square)));
        NaiveStep {
            a,
            b: r(input * x[1]),
            d_inputs: vec![if x[0] < 0.0 { 0.0 } else { d_s }, r(d * input)],
        }
    }

    /// Rates of decay from 0 to 5.
    #[cfg(feature = "check")]
    fn sample(self, input: usize, x: f64) -> f64 {
        match input {
            0 => 5.0 * x.abs(),
            _ => 2.0 * x,
        }
    }
}

/// `(a, √(1 - a²))` of a rate of decay, NaN kept.
#[inline(always)]
fn channel_decay<S: Simd, R: Real>(s: SimdVector<S, R>) -> (SimdVector<S, R>, SimdVector<S, R>) {
    let s = s.is_negative().select(s.constant(R::ZERO), s);
    let (a, rest) = s.decay();
    (a, rest.sqrt())
}

impl Coefficients<2> for RgLru {
    #[inline(always)]
    fn forward<S: Simd, R: Real>(
        [s, u]: [SimdVector<S, R>; 2],
    ) -> (SimdVector<S, R>, SimdVector<S, R>) {
        let (a, input_scale) = channel_decay(s);
        (a, input_scale * u)
    }

    #[inline(always)]
    fn backward<S: Simd, R: Real>(
        [s, u]: [SimdVector<S, R>; 2],
        h_prev: SimdVector<S, R>,
        d: SimdVector<S, R>,
    ) -> (SimdVector<S, R>, [SimdVector<S, R>; 2]) {
        let (a, input_scale) = channel_decay(s);
        // min(1 / (2 input_scale), STEEPEST_ROOT), twice.
        let least = s.constant(R::from_f64(0.5 / Gate::STEEPEST_ROOT));
        let twice_slope = s.constant(R::ONE) / input_scale.less(least).select(least, input_scale);
        let d_s = d * a * (a * u * twice_slope - h_prev);
        let d_s = s.is_negative().select(s.constant(R::ZERO), d_s);
        (a, [d_s, d * input_scale])
    }
}

/// The upper end of the series.
#[cfg(feature = "gpu")]
const SERIES_END: f32 = 0.5;

/// The upper end of the first two terms of the series in 16 bits.
#[cfg(feature = "gpu")]
const TERMS_END: f32 = 1.0 / 128.0;

/// The `√(1 - a²)` at which its slope reaches the largest one used, and its inverse.
#[cfg(feature = "gpu")]
const LEAST_SCALE: f32 = 0.5 / Gate::STEEPEST_ROOT as f32;
#[cfg(feature = "gpu")]
const LARGEST_INVERSE: f32 = 2.0 * Gate::STEEPEST_ROOT as f32;

/// The coefficient of a rate of decay, which counts as 0 where it is negative.
#[cfg(feature = "gpu")]
#[derive(CubeType, Clone, Copy)]
struct Decay<N: Size> {
    /// `a = e^-s`.
    a: Vector<f32, N>,
    /// `1 - a²`.
    rest: Vector<f32, N>,
}

/// `a = e^-s` and `1 - a²`.
///
/// `1 - a² = 2 a sinh s`: the series of the hyperbolic sine up to `s⁷` where the difference would cancel, with a remainder
/// under `2⁻²⁶`. The device's own hyperbolic functions are differences of exponentials on some drivers. In 16 bits
/// `1 - a² = 2 s - 2 s² + …` is cut there, much closer to 0: the remainder and what the difference loses from there on are under
/// `2⁻¹⁴`.
#[cfg(feature = "gpu")]
#[cube]
fn decay<N: Size>(s: Vector<f32, N>, #[comptime] math: Math) -> Decay<N> {
    let zero = Vector::<f32, N>::new(0.0f32);
    let one = Vector::<f32, N>::new(1.0f32);
    let two = Vector::<f32, N>::new(2.0f32);
    if comptime!(math.narrow) {
        let s = larger_or_nan::<N>(s, zero);
        let a = exp_of_negative::<N>(s, math.ptx);
        let near = s * fma(s, Vector::<f32, N>::new(-2.0f32), two);
        let end = Vector::<f32, N>::new(TERMS_END);
        Decay::<N> {
            a,
            rest: select_many(s.less_than(&end), near, fma(-a, a, one)),
        }
    } else {
        let s = select_many(s.less_than(&zero), zero, s);
        let a = exp_of_negative::<N>(s, math.ptx);
        // Twice the series of `sinh s / s`.
        let square = s * s;
        let series = Vector::<f32, N>::new(0.016_666_668f32)
            + square * Vector::<f32, N>::new(0.000_396_825_4f32);
        let series = Vector::<f32, N>::new(0.333_333_34f32) + square * series;
        let near = s * a * (two + square * series);
        let end = Vector::<f32, N>::new(SERIES_END);
        Decay::<N> {
            a,
            rest: select_many(s.less_than(&end), near, fma(zero - a, a, one)),
        }
    }
}

/// `√(1 - a²)` and twice its slope, `1 / √(1 - a²)`, bounded.
#[cfg(feature = "gpu")]
#[derive(CubeType, Clone, Copy)]
struct Root<N: Size> {
    value: Vector<f32, N>,
    twice_slope: Vector<f32, N>,
}

/// The root of a decay's rest: in 16 bits by one instruction, the inverse root, of which the root is the product with the square.
#[cfg(feature = "gpu")]
#[cube]
fn root<N: Size>(rest: Vector<f32, N>, #[comptime] math: Math) -> Root<N> {
    if comptime!(math.narrow) {
        // The bound makes the product 0 where the square is.
        let smallest = Vector::<f32, N>::new(f32::MIN_POSITIVE);
        let inverse = inverse_square_root::<N>(rest.max(smallest), math.ptx);
        Root::<N> {
            value: rest * inverse,
            twice_slope: inverse.min(Vector::<f32, N>::new(LARGEST_INVERSE)),
        }
    } else {
        let value = square_root::<N>(rest, math.ptx);
        let least = Vector::<f32, N>::new(LEAST_SCALE);
        Root::<N> {
            value,
            twice_slope: reciprocal::<N>(value.max(least), math.ptx),
        }
    }
}

#[cfg(feature = "gpu")]
#[cube]
pub(super) fn coefficients<N: Size>(
    s: Vector<f32, N>,
    u: Vector<f32, N>,
    _none: Vector<f32, N>,
    #[comptime] _gate: RgLru,
    #[comptime] math: Math,
) -> Affine<N> {
    let decay = decay::<N>(s, math);
    Affine::<N> {
        a: decay.a,
        b: square_root::<N>(decay.rest, math.ptx) * u,
    }
}

#[cfg(feature = "gpu")]
#[cube]
pub(super) fn gradients<N: Size>(
    s: Vector<f32, N>,
    u: Vector<f32, N>,
    _none: Vector<f32, N>,
    h_prev: Vector<f32, N>,
    d: Vector<f32, N>,
    #[comptime] _gate: RgLru,
    #[comptime] math: Math,
) -> InputGradients<N> {
    let zero = Vector::<f32, N>::new(0.0f32);
    let decay = decay::<N>(s, math);
    let root = root::<N>(decay.rest, math);
    let d_s = d * decay.a * (decay.a * u * root.twice_slope - h_prev);
    InputGradients::<N> {
        a: decay.a,
        d0: select_many(s.less_than(&zero), zero, d_s),
        d1: d * root.value,
        d2: zero,
    }
}
