//! The arithmetic of the CPU kernels: `f32` with elementary functions that vectorise, and `f64`.

use crate::simd::Isa;

/// The arithmetic of a kernel: `f32` or `f64`.
///
/// Methods that depend on the instructions at hand take them as `I`; see [`crate::simd`].
pub trait Real:
    Copy
    + Send
    + Sync
    + Default
    + PartialOrd
    + std::fmt::Debug
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
    + std::ops::Neg<Output = Self>
    + 'static
{
    /// Zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;
    /// One half.
    const HALF: Self;

    /// `self * b + c`, rounded once where the instructions fuse it, twice where not.
    fn mul_add<I: Isa>(self, b: Self, c: Self) -> Self;
    /// `|self|`.
    fn abs(self) -> Self;
    /// `e^self` within 2 ulp, subnormal results included. Saturates to 0 and infinity; keeps NaN.
    fn exp<I: Isa>(self) -> Self;
    /// `e^-|self|` within 2 ulp, or 0 where that is subnormal: cheaper than [`Real::exp`].
    fn exp_decay<I: Isa>(self) -> Self;
    /// The hyperbolic tangent, to a few ulp on both sides of 0 and near it.
    fn tanh<I: Isa>(self) -> Self;

    /// `(σ(self), σ(-self))`, both to a few ulp: the second is not `1 - σ`, which has no digits where `σ` is near 1.
    #[inline(always)]
    fn sigmoids<I: Isa>(self) -> (Self, Self) {
        let e = self.exp_decay::<I>();
        let large = Self::ONE / (Self::ONE + e);
        let small = e * large;
        if self >= Self::ZERO {
            (large, small)
        } else {
            (small, large)
        }
    }
}

impl Real for f32 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const HALF: Self = 0.5;

    #[inline(always)]
    fn mul_add<I: Isa>(self, b: Self, c: Self) -> Self {
        if I::FMA {
            f32::mul_add(self, b, c)
        } else {
            self * b + c
        }
    }

    #[inline(always)]
    fn abs(self) -> Self {
        f32::abs(self)
    }

    #[inline(always)]
    fn exp<I: Isa>(self) -> Self {
        // Past these ends the result is infinite, or rounds to 0. Written so that NaN falls through.
        const HIGH: f32 = 89.0;
        const LOW: f32 = -104.0;
        let x = if self > HIGH { HIGH } else { self };
        let x = if x < LOW { LOW } else { x };
        let (y, n) = split_exp::<I>(x);
        // In two factors, because 2^n itself may be out of range where the result is not.
        let half = n >> 1;
        y * power_of_two(half) * power_of_two(n.wrapping_sub(half))
    }

    #[inline(always)]
    fn exp_decay<I: Isa>(self) -> Self {
        // Just above ln 2^-126.
        const LOW: f32 = -87.33;
        let x = -f32::abs(self);
        let (y, n) = split_exp::<I>(x);
        if x < LOW { 0.0 } else { y * power_of_two(n) }
    }

    /// Cephes: an odd polynomial below 0.625, `(1 - e^-2|x|) / (1 + e^-2|x|)` above.
    #[inline(always)]
    fn tanh<I: Isa>(self) -> Self {
        let square = self * self;
        let p = horner::<I, 5>(
            [
                -5.704_988_7e-3,
                2.063_908_8e-2,
                -5.373_971_5e-2,
                1.333_144_2e-1,
                -3.333_328e-1,
            ],
            square,
        );
        let near = madd::<I>(p * square, self, self);

        let magnitude = f32::abs(self);
        let e = Real::exp_decay::<I>(self + self);
        let far = (1.0 - e) / (1.0 + e);
        if magnitude < 0.625 {
            near
        } else {
            far.copysign(self)
        }
    }
}

/// [`Real::mul_add`], which `f32` hides behind a method of its own.
#[inline(always)]
fn madd<I: Isa>(a: f32, b: f32, c: f32) -> f32 {
    Real::mul_add::<I>(a, b, c)
}

/// A polynomial from its coefficients, the highest power's first.
#[inline(always)]
fn horner<I: Isa, const N: usize>(coefficients: [f32; N], x: f32) -> f32 {
    let mut p = coefficients[0];
    for k in 1..N {
        p = madd::<I>(p, x, coefficients[k]);
    }
    p
}

/// `(e^r, n)` with `x = n ln 2 + r`, `|r| ≤ ln 2 / 2`: no branches and no calls, so that loops vectorise. Where `x` is
/// NaN, `e^r` is NaN and `n` is any number; the same where `|x|` is beyond all exponents.
#[inline(always)]
fn split_exp<I: Isa>(x: f32) -> (f32, i32) {
    // Adding 1.5 · 2^23 leaves the rounded integer in the low bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts; the first has so few bits that n times it is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Least-maximum fit of (e^r - 1 - r) / r² for the relative error of e^r, which is under 4e-9.
    const P: [f32; 5] = [
        1.381_453_9e-3,
        8.368_745e-3,
        4.166_839e-2,
        1.666_652_1e-1,
        0.499_999_94,
    ];

    let shifted = madd::<I>(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = madd::<I>(n, -LN2_LOW, madd::<I>(n, -LN2_HIGH, x));
    let y = madd::<I>(horner::<I, 5>(P, r), r * r, r) + 1.0;
    (
        y,
        (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32),
    )
}

/// `2^n` for `-127 < n < 128`.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) << 23) as u32)
}

impl Real for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const HALF: Self = 0.5;

    #[inline(always)]
    fn mul_add<I: Isa>(self, b: Self, c: Self) -> Self {
        if I::FMA {
            f64::mul_add(self, b, c)
        } else {
            self * b + c
        }
    }

    #[inline(always)]
    fn abs(self) -> Self {
        f64::abs(self)
    }

    #[inline(always)]
    fn exp<I: Isa>(self) -> Self {
        f64::exp(self)
    }

    #[inline(always)]
    fn exp_decay<I: Isa>(self) -> Self {
        f64::exp(-f64::abs(self))
    }

    #[inline(always)]
    fn tanh<I: Isa>(self) -> Self {
        f64::tanh(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Avx2, Baseline};

    /// Distance in units of the last place of the nearest `f32` to `exact`.
    fn ulps(found: f32, exact: f64) -> f64 {
        let nearest = exact as f32;
        if found == nearest {
            return 0.0;
        }
        let exponent = (nearest.abs().to_bits() >> 23).max(1) as i32;
        ((f64::from(found) - exact) / 2_f64.powi(exponent - 150)).abs()
    }

    /// Every 997th float of either sign.
    fn floats() -> impl Iterator<Item = f32> {
        (0..0x7f80_0000_u32)
            .step_by(997)
            .flat_map(|bits| [f32::from_bits(bits), -f32::from_bits(bits)])
    }

    /// The largest error of `found` over [`floats`], in ulp, and where.
    fn worst(found: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64) -> (f64, f32) {
        floats()
            .map(|x| (ulps(found(x), exact(f64::from(x))), x))
            .fold(
                (0.0, 0.0),
                |worst, next| if next.0 > worst.0 { next } else { worst },
            )
    }

    fn assert_within(ulps: f64, found: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64) {
        let (error, x) = worst(found, exact);
        assert!(error <= ulps, "{error} ulp at {x:e}");
    }

    #[test]
    fn exp_is_within_two_ulp() {
        // `Avx2` here means fused arithmetic, in software where the target lacks it.
        assert_within(2.0, Real::exp::<Baseline>, f64::exp);
        assert_within(2.0, Real::exp::<Avx2>, f64::exp);
    }

    #[test]
    fn exp_saturates_and_keeps_nan() {
        for (x, y) in [
            (1e4, f32::INFINITY),
            (f32::INFINITY, f32::INFINITY),
            (-1e4, 0.0),
            (f32::NEG_INFINITY, 0.0),
        ] {
            assert_eq!(Real::exp::<Baseline>(x), y);
            assert_eq!(Real::exp::<Avx2>(x), y);
        }
        assert_eq!(Real::exp::<Avx2>(0.0_f32), 1.0);
        assert!(Real::exp::<Baseline>(f32::NAN).is_nan());
        assert!(Real::exp::<Baseline>(-f32::NAN).is_nan());
    }

    #[test]
    fn sigmoids_are_accurate_on_both_sides() {
        // Where e^x is subnormal, 0 is what is promised.
        let sigmoid = |x: f64| match x {
            0.0.. => 1.0 / (1.0 + (-x).exp()),
            -87.33.. => x.exp() / (1.0 + x.exp()),
            _ => 0.0,
        };
        for fused in [false, true] {
            let both = |x: f32| {
                if fused {
                    x.sigmoids::<Avx2>()
                } else {
                    x.sigmoids::<Baseline>()
                }
            };
            assert_within(4.0, |x| both(x).0, sigmoid);
            assert_within(4.0, |x| both(x).1, |x| sigmoid(-x));
            assert_eq!(both(1e4), (1.0, 0.0));
            assert_eq!(both(-1e4), (0.0, 1.0));
            assert!(both(f32::NAN).0.is_nan() && both(f32::NAN).1.is_nan());
        }
    }

    #[test]
    fn tanh_is_accurate_near_zero_and_far() {
        for fused in [false, true] {
            let tanh = |x: f32| {
                if fused {
                    Real::tanh::<Avx2>(x)
                } else {
                    Real::tanh::<Baseline>(x)
                }
            };
            assert_within(3.0, tanh, f64::tanh);
            assert_eq!((tanh(f32::INFINITY), tanh(f32::NEG_INFINITY)), (1.0, -1.0));
            assert!(tanh(f32::NAN).is_nan());
        }
    }
}
