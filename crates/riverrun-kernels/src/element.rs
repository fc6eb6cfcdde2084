//! Storage types and the wider type each one is computed in.

use half::{bf16, f16};
use pulp::Simd;

use crate::simd::pair::{self, Pair};
use crate::simd::real::Real;

/// Declares a trait whose functions are kernels, implemented for every storage type by the generic functions on the right.
///
/// The functions of an operation take elements with its trait: a call like `E::attend(..)` is then a call into this crate. The
/// generic function itself would be compiled again, with all its instruction sets, in every crate that calls it. All traits
/// together are [`CpuElement`](crate::CpuElement).
macro_rules! compiled_here {
    ($trait:ident<$e:ident> { $($functions:tt)* }) => {
        compiled_here!(@declare $trait $e $($functions)*);
        compiled_here!(@implement f32, $trait $e $($functions)*);
        compiled_here!(@implement f64, $trait $e $($functions)*);
        compiled_here!(@implement half::f16, $trait $e $($functions)*);
        compiled_here!(@implement half::bf16, $trait $e $($functions)*);
    };
    (@declare $trait:ident $e:ident
        $(fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $out:ty = $body:ident;)+) => {
        #[doc(hidden)]
        #[allow(missing_docs)]
        pub trait $trait<$e: $crate::Element>: $crate::Element {
            $(fn $name($($arg: $type),*) -> $out;)+
        }
    };
    (@implement $element:ty, $trait:ident $e:ident
        $(fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $out:ty = $body:ident;)+) => {
        const _: () = {
            type $e = $element;
            impl $trait<$e> for $e {
                $(
                    #[cfg(not(any(test, feature = "no-cpu")))]
                    fn $name($($arg: $type),*) -> $out {
                        $body::<$e>($($arg),*)
                    }

                    // The unit tests need no kernel in all its forms, and are built sooner without.
                    #[cfg(any(test, feature = "no-cpu"))]
                    fn $name($($arg: $type),*) -> $out {
                        let _ = ($body::<$e>, $($arg,)*);
                        unreachable!("this build has no CPU kernels")
                    }
                )+
            }
        };
    };
}
pub(crate) use compiled_here;

/// A storage type of the CPU kernels: `f32`, `f16`, `bf16` or `f64`.
///
/// Arithmetic and carries run in [`Element::Acc`]: `f32` for the types up to 32 bits, `f64` for `f64`.
pub trait Element:
    bytemuck::Pod + Send + Sync + Default + PartialEq + std::fmt::Debug + 'static
{
    /// The type of arithmetic and carries.
    type Acc: Real;
    /// The name in tables and on the command line: `f32`, `f16`, `bf16`, `f64`.
    const NAME: &'static str;
    /// The distance from 1 to the next larger value.
    const EPSILON: f64;
    /// Zero.
    const ZERO: Self;

    /// Widens to the arithmetic type, exactly.
    fn widen(self) -> Self::Acc;
    /// Rounds to the storage type, to nearest even.
    fn narrow(x: Self::Acc) -> Self;
    /// A pair of registers, widened.
    #[doc(hidden)]
    fn load<S: Simd>(simd: S, from: &[Self]) -> Pair<S, Self::Acc>;
    /// A pair of registers, rounded to nearest even.
    #[doc(hidden)]
    fn store<S: Simd>(to: &mut [Self], x: Pair<S, Self::Acc>);
    /// Widens to `f64`, exactly.
    fn to_f64(self) -> f64;
    /// Rounds from `f64`.
    fn from_f64(x: f64) -> Self;
}

impl Element for f32 {
    type Acc = f32;
    const NAME: &'static str = "f32";
    const EPSILON: f64 = f32::EPSILON as f64;
    const ZERO: Self = 0.0;

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    fn narrow(x: f32) -> Self {
        x
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, from: &[Self]) -> Pair<S, f32> {
        pair::load(simd, from)
    }

    #[inline(always)]
    fn store<S: Simd>(to: &mut [Self], x: Pair<S, f32>) {
        pair::store(to, x);
    }

    fn to_f64(self) -> f64 {
        f64::from(self)
    }

    fn from_f64(x: f64) -> Self {
        x as f32
    }
}

impl Element for f64 {
    type Acc = f64;
    const NAME: &'static str = "f64";
    const EPSILON: f64 = f64::EPSILON;
    const ZERO: Self = 0.0;

    #[inline(always)]
    fn widen(self) -> f64 {
        self
    }

    #[inline(always)]
    fn narrow(x: f64) -> Self {
        x
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, from: &[Self]) -> Pair<S, f64> {
        pair::load(simd, from)
    }

    #[inline(always)]
    fn store<S: Simd>(to: &mut [Self], x: Pair<S, f64>) {
        pair::store(to, x);
    }

    fn to_f64(self) -> f64 {
        self
    }

    fn from_f64(x: f64) -> Self {
        x
    }
}

impl Element for bf16 {
    type Acc = f32;
    const NAME: &'static str = "bf16";
    const EPSILON: f64 = 7.812_5e-3;
    const ZERO: Self = bf16::ZERO;

    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn narrow(x: f32) -> Self {
        let bits = x.to_bits();
        // Just under half of the last kept place, and the rest if that place is odd: to nearest even.
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        // Rounding could carry a NaN into infinity, so NaNs are passed through as quiet NaNs.
        let quiet = (bits >> 16) | 0x40;
        bf16::from_bits(if (bits & 0x7fff_ffff) > 0x7f80_0000 {
            quiet
        } else {
            rounded
        } as u16)
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, from: &[Self]) -> Pair<S, f32> {
        pair::load_bf16(simd, from)
    }

    #[inline(always)]
    fn store<S: Simd>(to: &mut [Self], x: Pair<S, f32>) {
        pair::store_bf16(to, x);
    }

    fn to_f64(self) -> f64 {
        f64::from(self.widen())
    }

    fn from_f64(x: f64) -> Self {
        Self::narrow(round_to_odd(x))
    }
}

impl Element for f16 {
    type Acc = f32;
    const NAME: &'static str = "f16";
    const EPSILON: f64 = 9.765_625e-4;
    const ZERO: Self = f16::ZERO;

    #[inline(always)]
    fn widen(self) -> f32 {
        let bits = u32::from(self.to_bits());
        let magnitude = (bits & 0x7fff) << 13;
        let exponent = magnitude & 0x0f80_0000;
        // Exponents count from 15 here and from 127 there.
        let normal = magnitude + (112 << 23);
        // A subnormal is a multiple of 2^-24: put it under the leading bit of 2^-14, and subtract that.
        let subnormal =
            (f32::from_bits(magnitude + (113 << 23)) - f32::from_bits(113 << 23)).to_bits();
        let special = magnitude | 0x7f80_0000;
        let wide = if exponent == 0 { subnormal } else { normal };
        let wide = if exponent == 0x0f80_0000 {
            special
        } else {
            wide
        };
        f32::from_bits(wide | ((bits & 0x8000) << 16))
    }

    #[inline(always)]
    fn narrow(x: f32) -> Self {
        let sign = x.to_bits() & 0x8000_0000;
        let magnitude = x.to_bits() ^ sign;
        // Below 2^-14: adding 0.5 aligns the last kept place with that of the sum, which rounds to nearest even.
        let subnormal = (f32::from_bits(magnitude) + 0.5)
            .to_bits()
            .wrapping_sub(0.5_f32.to_bits());
        // Rounding at the 13th bit; a carry out of the mantissa moves the exponent, up to infinity.
        let odd = (magnitude >> 13) & 1;
        let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + odd) >> 13;
        let special = if magnitude > 0x7f80_0000 {
            0x7e00
        } else {
            0x7c00
        };
        let half = if magnitude < (113 << 23) {
            subnormal
        } else {
            normal
        };
        let half = if magnitude >= 0x4780_0000 {
            special
        } else {
            half
        };
        f16::from_bits((half | (sign >> 16)) as u16)
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, from: &[Self]) -> Pair<S, f32> {
        pair::load_f16(simd, from)
    }

    #[inline(always)]
    fn store<S: Simd>(to: &mut [Self], x: Pair<S, f32>) {
        pair::store_f16(to, x);
    }

    fn to_f64(self) -> f64 {
        f64::from(self.widen())
    }

    fn from_f64(x: f64) -> Self {
        Self::narrow(round_to_odd(x))
    }
}

/// Rounds to the neighbour in `f32` whose last bit is odd, unless exact. Rounding the result once more, to fewer bits,
/// then gives what rounding `x` once would have given.
fn round_to_odd(x: f64) -> f32 {
    let near = x as f32;
    if f64::from(near) == x || x.is_nan() {
        return near;
    }
    // Towards zero first (an overflow comes back to the largest finite value, whose last bit is odd).
    let past = f64::from(near.abs()) > x.abs();
    let truncated = near.to_bits() - u32::from(past);
    f32::from_bits(truncated | 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widening_is_exact() {
        for bits in 0..=u16::MAX {
            let (h, b) = (f16::from_bits(bits), bf16::from_bits(bits));
            assert!(
                h.widen() == h.to_f32() || h.is_nan() && h.widen().is_nan(),
                "{bits:#x}"
            );
            assert!(
                b.widen() == b.to_f32() || b.is_nan() && b.widen().is_nan(),
                "{bits:#x}"
            );
            assert_eq!(h.widen().is_sign_negative(), h.is_sign_negative());
        }
    }

    #[test]
    fn narrowing_rounds_to_nearest_even() {
        // Every 499th float, and the ties between neighbours and their surroundings.
        let spread = (0..=u32::MAX).step_by(499);
        let ties = (0..=u16::MAX)
            .flat_map(|top| [0x7fff, 0x8000, 0x8001].map(|low| u32::from(top) << 16 | low));
        let half_ties =
            (0..1 << 19).flat_map(|top: u32| [0xfff, 0x1000, 0x1001].map(|low| top << 13 | low));
        for bits in spread.chain(ties).chain(half_ties) {
            let x = f32::from_bits(bits);
            let (h, b) = (f16::narrow(x), bf16::narrow(x));
            if x.is_nan() {
                assert!(h.is_nan() && b.is_nan(), "{bits:#x}");
            } else {
                assert_eq!(h.to_bits(), f16::from_f32(x).to_bits(), "{bits:#x}");
                assert_eq!(b.to_bits(), bf16::from_f32(x).to_bits(), "{bits:#x}");
            }
        }
    }

    #[test]
    fn from_f64_rounds_once() {
        // Just above the tie between 1 and its neighbour, by less than an f32 can hold.
        let above = 1.0 + f16::EPSILON.to_f64() / 2.0 + 1e-12;
        assert_eq!(
            <f16 as Element>::from_f64(above),
            f16::from_bits(f16::ONE.to_bits() + 1)
        );
        assert_eq!(
            <f16 as Element>::from_f64(-above),
            -f16::from_bits(f16::ONE.to_bits() + 1)
        );
        assert_eq!(
            <f16 as Element>::from_f64(1.0 + f16::EPSILON.to_f64() / 2.0),
            f16::ONE
        );
        assert_eq!(<bf16 as Element>::from_f64(1e300), bf16::INFINITY);
        assert_eq!(<f16 as Element>::from_f64(-1e300), f16::NEG_INFINITY);
        assert_eq!(<f16 as Element>::from_f64(1e-300), f16::ZERO);
    }
}
