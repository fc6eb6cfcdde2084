//! The arithmetic of the CPU kernels, `f32` or `f64`, on the machine's vector registers.

use std::ops::{Add, AddAssign, Div, Mul};

use pulp::Simd;

use crate::simd::vector::Vector;

/// The arithmetic of a kernel: `f32` or `f64`.
///
/// `S` is the instruction set, known where the code is compiled; its registers hold several numbers. Kernels use these
/// operations through `Vector`.
pub trait Real:
    bytemuck::Pod
    + Send
    + Sync
    + Default
    + PartialOrd
    + std::fmt::Debug
    + Add<Output = Self>
    + AddAssign
    + Div<Output = Self>
    + Mul<Output = Self>
    + 'static
{
    /// A register.
    type Lanes<S: Simd>: Copy;
    /// A mask: one flag per number of a register.
    type Mask<S: Simd>: Copy;

    /// Zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;
    /// One half.
    const HALF: Self;
    /// The lowest finite number.
    const LOWEST: Self;
    /// The nearest number.
    fn from_f64(x: f64) -> Self;
    /// The same number.
    fn to_f64(self) -> f64;
    /// The square root.
    fn sqrt(self) -> Self;

    /// `x` in every lane.
    fn splat<S: Simd>(simd: S, x: Self) -> Self::Lanes<S>;
    /// A slice as whole registers and a remainder.
    fn split<S: Simd>(x: &[Self]) -> (&[Self::Lanes<S>], &[Self]);
    /// A slice as whole registers and a remainder.
    fn split_mut<S: Simd>(x: &mut [Self]) -> (&mut [Self::Lanes<S>], &mut [Self]);
    /// A register of less than a register's worth of numbers, with zeros after them.
    fn load_rest<S: Simd>(simd: S, x: &[Self]) -> Self::Lanes<S>;
    /// The first numbers of a register, as many as there is room for.
    fn store_rest<S: Simd>(simd: S, to: &mut [Self], x: Self::Lanes<S>);

    /// `a + b`.
    fn add<S: Simd>(simd: S, a: Self::Lanes<S>, b: Self::Lanes<S>) -> Self::Lanes<S>;
    /// `a - b`.
    fn sub<S: Simd>(simd: S, a: Self::Lanes<S>, b: Self::Lanes<S>) -> Self::Lanes<S>;
    /// `a b`.
    fn mul<S: Simd>(simd: S, a: Self::Lanes<S>, b: Self::Lanes<S>) -> Self::Lanes<S>;
    /// `a / b`.
    fn div<S: Simd>(simd: S, a: Self::Lanes<S>, b: Self::Lanes<S>) -> Self::Lanes<S>;
    /// `-a`.
    fn neg<S: Simd>(simd: S, a: Self::Lanes<S>) -> Self::Lanes<S>;
    /// `|a|`.
    fn abs<S: Simd>(simd: S, a: Self::Lanes<S>) -> Self::Lanes<S>;
    /// `a b + c`, rounded once where the machine fuses it, twice where not.
    fn mul_add<S: Simd>(
        simd: S,
        a: Self::Lanes<S>,
        b: Self::Lanes<S>,
        c: Self::Lanes<S>,
    ) -> Self::Lanes<S>;
    /// The square root.
    fn root<S: Simd>(simd: S, a: Self::Lanes<S>) -> Self::Lanes<S>;
    /// `a < b`, false for NaN.
    fn less<S: Simd>(simd: S, a: Self::Lanes<S>, b: Self::Lanes<S>) -> Self::Mask<S>;
    /// `a` where the mask is set, `b` elsewhere.
    fn select<S: Simd>(
        simd: S,
        mask: Self::Mask<S>,
        a: Self::Lanes<S>,
        b: Self::Lanes<S>,
    ) -> Self::Lanes<S>;

    /// The sum of a register's numbers, in a tree.
    fn sum<S: Simd>(simd: S, x: Self::Lanes<S>) -> Self;
    /// The highest of a register's numbers, none of which is NaN.
    fn highest<S: Simd>(simd: S, x: Self::Lanes<S>) -> Self;

    /// `e^-|x|` within 2 ulp, or 0 where that is subnormal; NaN is kept.
    fn exp_decay<S: Simd>(x: Vector<S, Self>) -> Vector<S, Self>;
    /// `(e^-|x|, 1 - e^-2|x|)`, see `Vector::decay`.
    fn decay<S: Simd>(x: Vector<S, Self>) -> (Vector<S, Self>, Vector<S, Self>);
    /// The hyperbolic tangent, to a few ulp on both sides of 0 and near it.
    fn tanh<S: Simd>(x: Vector<S, Self>) -> Vector<S, Self>;
}

macro_rules! real {
    (
        $ty:ty, $lanes:ident, $mask:ident, $elementary:path,
        $splat:ident, $split:ident, $split_mut:ident, $load_rest:ident, $store_rest:ident,
        $add:ident, $sub:ident, $mul:ident, $div:ident, $neg:ident, $abs:ident, $mul_add:ident,
        $root:ident, $less:ident, $select:ident, $sum:ident, $highest:ident
    ) => {
        impl Real for $ty {
            type Lanes<S: Simd> = S::$lanes;
            type Mask<S: Simd> = S::$mask;

            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const HALF: Self = 0.5;
            const LOWEST: Self = <$ty>::MIN;

            #[inline(always)]
            fn from_f64(x: f64) -> Self {
                x as $ty
            }

            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }

            #[inline(always)]
            fn sqrt(self) -> Self {
                <$ty>::sqrt(self)
            }

            #[inline(always)]
            fn splat<S: Simd>(simd: S, x: Self) -> S::$lanes {
                simd.$splat(x)
            }

            #[inline(always)]
            fn split<S: Simd>(x: &[Self]) -> (&[S::$lanes], &[Self]) {
                S::$split(x)
            }

            #[inline(always)]
            fn split_mut<S: Simd>(x: &mut [Self]) -> (&mut [S::$lanes], &mut [Self]) {
                S::$split_mut(x)
            }

            #[inline(always)]
            fn load_rest<S: Simd>(simd: S, x: &[Self]) -> S::$lanes {
                simd.$load_rest(x)
            }

            #[inline(always)]
            fn store_rest<S: Simd>(simd: S, to: &mut [Self], x: S::$lanes) {
                simd.$store_rest(to, x);
            }

            #[inline(always)]
            fn add<S: Simd>(simd: S, a: S::$lanes, b: S::$lanes) -> S::$lanes {
                simd.$add(a, b)
            }

            #[inline(always)]
            fn sub<S: Simd>(simd: S, a: S::$lanes, b: S::$lanes) -> S::$lanes {
                simd.$sub(a, b)
            }

            #[inline(always)]
            fn mul<S: Simd>(simd: S, a: S::$lanes, b: S::$lanes) -> S::$lanes {
                simd.$mul(a, b)
            }

            #[inline(always)]
            fn div<S: Simd>(simd: S, a: S::$lanes, b: S::$lanes) -> S::$lanes {
                simd.$div(a, b)
            }

            #[inline(always)]
            fn neg<S: Simd>(simd: S, a: S::$lanes) -> S::$lanes {
                simd.$neg(a)
            }

            #[inline(always)]
            fn abs<S: Simd>(simd: S, a: S::$lanes) -> S::$lanes {
                simd.$abs(a)
            }

            #[inline(always)]
            fn mul_add<S: Simd>(simd: S, a: S::$lanes, b: S::$lanes, c: S::$lanes) -> S::$lanes {
                simd.$mul_add(a, b, c)
            }

            #[inline(always)]
            fn root<S: Simd>(simd: S, a: S::$lanes) -> S::$lanes {
                simd.$root(a)
            }

            #[inline(always)]
            fn less<S: Simd>(simd: S, a: S::$lanes, b: S::$lanes) -> S::$mask {
                simd.$less(a, b)
            }

            #[inline(always)]
            fn select<S: Simd>(simd: S, mask: S::$mask, a: S::$lanes, b: S::$lanes) -> S::$lanes {
                simd.$select(mask, a, b)
            }

            #[inline(always)]
            fn sum<S: Simd>(simd: S, x: S::$lanes) -> Self {
                simd.$sum(x)
            }

            #[inline(always)]
            fn highest<S: Simd>(simd: S, x: S::$lanes) -> Self {
                simd.$highest(x)
            }

            #[inline(always)]
            fn exp_decay<S: Simd>(x: Vector<S, Self>) -> Vector<S, Self> {
                use $elementary as elementary;
                elementary::exp_decay(x)
            }

            #[inline(always)]
            fn decay<S: Simd>(x: Vector<S, Self>) -> (Vector<S, Self>, Vector<S, Self>) {
                use $elementary as elementary;
                elementary::decay(x)
            }

            #[inline(always)]
            fn tanh<S: Simd>(x: Vector<S, Self>) -> Vector<S, Self> {
                use $elementary as elementary;
                elementary::tanh(x)
            }
        }
    };
}

real!(
    f32,
    f32s,
    m32s,
    crate::simd::elementary::single,
    splat_f32s,
    as_simd_f32s,
    as_mut_simd_f32s,
    partial_load_f32s,
    partial_store_f32s,
    add_f32s,
    sub_f32s,
    mul_f32s,
    div_f32s,
    neg_f32s,
    abs_f32s,
    mul_add_e_f32s,
    sqrt_f32s,
    less_than_f32s,
    select_f32s,
    reduce_sum_f32s,
    reduce_max_f32s
);
real!(
    f64,
    f64s,
    m64s,
    crate::simd::elementary::double,
    splat_f64s,
    as_simd_f64s,
    as_mut_simd_f64s,
    partial_load_f64s,
    partial_store_f64s,
    add_f64s,
    sub_f64s,
    mul_f64s,
    div_f64s,
    neg_f64s,
    abs_f64s,
    mul_add_e_f64s,
    sqrt_f64s,
    less_than_f64s,
    select_f64s,
    reduce_sum_f64s,
    reduce_max_f64s
);
