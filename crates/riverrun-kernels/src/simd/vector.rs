//! A register of numbers, with the operators of numbers.

use std::ops::{Add, Div, Mul, Neg, Sub};

use pulp::Simd;

use crate::simd::real::Real;

/// A register of the instruction set `S`, with numbers of type `R`.
#[derive(Clone, Copy)]
pub struct Vector<S: Simd, R: Real> {
    /// The instruction set.
    pub simd: S,
    /// The register.
    pub lanes: R::Lanes<S>,
}

/// Numbers in a register.
#[inline(always)]
pub const fn lanes<S: Simd, R: Real>() -> usize {
    size_of::<R::Lanes<S>>() / size_of::<R>()
}

/// A mask: one flag per number of a register.
#[derive(Clone, Copy)]
pub struct Mask<S: Simd, R: Real> {
    simd: S,
    mask: R::Mask<S>,
}

impl<S: Simd, R: Real> Vector<S, R> {
    /// The numbers of a register.
    #[inline(always)]
    pub fn new(simd: S, lanes: R::Lanes<S>) -> Self {
        Self { simd, lanes }
    }

    /// Less than a register's worth of numbers, with zeros after them.
    #[inline(always)]
    pub fn load_rest(simd: S, x: &[R]) -> Self {
        Self::new(simd, R::load_rest(simd, x))
    }

    /// `x` in every lane.
    #[inline(always)]
    pub fn splat(simd: S, x: R) -> Self {
        Self::new(simd, R::splat(simd, x))
    }

    /// A constant of the same kind.
    #[inline(always)]
    pub fn constant(self, x: R) -> Self {
        Self::splat(self.simd, x)
    }

    /// `|self|`.
    #[inline(always)]
    pub fn abs(self) -> Self {
        Self::new(self.simd, R::abs(self.simd, self.lanes))
    }

    /// `self b + c`, rounded once where the machine fuses it, twice where not.
    #[inline(always)]
    pub fn mul_add(self, b: Self, c: Self) -> Self {
        Self::new(
            self.simd,
            R::mul_add(self.simd, self.lanes, b.lanes, c.lanes),
        )
    }

    /// `self < other`, false for NaN.
    #[inline(always)]
    pub fn less(self, other: Self) -> Mask<S, R> {
        Mask {
            simd: self.simd,
            mask: R::less(self.simd, self.lanes, other.lanes),
        }
    }

    /// The sum of the lanes, in a tree.
    #[inline(always)]
    pub fn sum(self) -> R {
        R::sum(self.simd, self.lanes)
    }

    /// The highest lane; no lane may be NaN.
    #[inline(always)]
    pub fn highest(self) -> R {
        R::highest(self.simd, self.lanes)
    }

    /// `self < 0`.
    #[inline(always)]
    pub fn is_negative(self) -> Mask<S, R> {
        self.less(self.constant(R::ZERO))
    }

    /// `e^-|self|` within 2 ulp, or 0 where that is subnormal; NaN is kept.
    #[inline(always)]
    pub fn exp_decay(self) -> Self {
        R::exp_decay(self)
    }

    /// `(e^-|self|, 1 - e^-2|self|)`, both to a few ulp: a factor and one minus its square, without cancellation where the
    /// factor is near 1.
    #[inline(always)]
    pub fn decay(self) -> (Self, Self) {
        R::decay(self)
    }

    /// The square root.
    #[inline(always)]
    pub fn sqrt(self) -> Self {
        Self::new(self.simd, R::root(self.simd, self.lanes))
    }

    /// The hyperbolic tangent, to a few ulp on both sides of 0 and near it.
    #[inline(always)]
    pub fn tanh(self) -> Self {
        R::tanh(self)
    }

    /// `1 - self`.
    #[inline(always)]
    pub fn one_minus(self) -> Self {
        self.constant(R::ONE) - self
    }

    /// `1 - self²`, rounded once where the machine fuses it.
    #[inline(always)]
    pub fn one_minus_square(self) -> Self {
        (-self).mul_add(self, self.constant(R::ONE))
    }

    /// `σ(self)`, to a few ulp.
    #[inline(always)]
    pub fn sigmoid(self) -> Self {
        self.sigmoids().0
    }

    /// `(σ(self), σ(-self))`, both to a few ulp: the second is not computed as `1 - σ`, which cancels where `σ` is near 1.
    #[inline(always)]
    pub fn sigmoids(self) -> (Self, Self) {
        let one = self.constant(R::ONE);
        let e = self.exp_decay();
        let large = one / (one + e);
        let small = e * large;
        let negative = self.is_negative();
        (negative.select(small, large), negative.select(large, small))
    }
}

impl<S: Simd, R: Real> Mask<S, R> {
    /// `a` where the mask is set, `b` elsewhere.
    #[inline(always)]
    pub fn select(self, a: Vector<S, R>, b: Vector<S, R>) -> Vector<S, R> {
        Vector::new(self.simd, R::select(self.simd, self.mask, a.lanes, b.lanes))
    }
}

macro_rules! operator {
    ($trait:ident, $method:ident) => {
        impl<S: Simd, R: Real> $trait for Vector<S, R> {
            type Output = Self;

            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                Self::new(
                    self.simd,
                    <R as Real>::$method(self.simd, self.lanes, other.lanes),
                )
            }
        }
    };
}

operator!(Add, add);
operator!(Sub, sub);
operator!(Mul, mul);
operator!(Div, div);

impl<S: Simd, R: Real> Neg for Vector<S, R> {
    type Output = Self;

    #[inline(always)]
    fn neg(self) -> Self {
        Self::new(self.simd, R::neg(self.simd, self.lanes))
    }
}
