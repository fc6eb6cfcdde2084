//! Pairs of registers: the numbers that a loop over channels loads, computes and stores at a time.
//!
//! A pair is two registers of the arithmetic type. Two, because registers of 16-bit numbers hold twice as many; and two
//! independent chains of operations keep a core busier than one. The type decides which number is in which register; load and
//! store agree, and nothing else depends on it.

use bytemuck::{Pod, bytes_of, cast_slice, cast_slice_mut, pod_read_unaligned};
use half::{bf16, f16};
use pulp::Simd;

use crate::Element;
use crate::simd::real::Real;
use crate::simd::vector::Vector;

/// A pair in registers.
pub type Pair<S, R> = [Vector<S, R>; 2];

/// Numbers in a pair.
#[inline(always)]
pub const fn pair_len<S: Simd, R: Real>() -> usize {
    2 * size_of::<R::Lanes<S>>() / size_of::<R>()
}

/// The most numbers of a pair: two registers of AVX-512.
pub const LANES: usize = 32;

/// Loads a pair or the beginning of one, with zeros after it.
#[inline(always)]
pub fn load_padded<S: Simd, E: Element>(simd: S, from: &[E]) -> Pair<S, E::Acc> {
    let n = pair_len::<S, E::Acc>();
    if from.len() == n {
        return E::load(simd, from);
    }
    if const { is_wide::<E>() } {
        // By masks: what has just been written in parts takes long to be read as a whole.
        let from: &[E::Acc] = cast_slice(from);
        let (first, second) = from.split_at(from.len().min(n / 2));
        return [
            Vector::load_rest(simd, first),
            Vector::load_rest(simd, second),
        ];
    }
    let mut padded = [E::ZERO; LANES];
    padded[..from.len()].copy_from_slice(from);
    E::load(simd, &padded[..n])
}

/// Stores a pair, or the beginning of one if there is room for no more.
#[inline(always)]
pub fn store_padded<S: Simd, E: Element>(to: &mut [E], x: Pair<S, E::Acc>) {
    let n = pair_len::<S, E::Acc>();
    if to.len() == n {
        return E::store(to, x);
    }
    if const { is_wide::<E>() } {
        let to: &mut [E::Acc] = cast_slice_mut(to);
        let (first, second) = to.split_at_mut(to.len().min(n / 2));
        <E::Acc as Real>::store_rest(x[0].simd, first, x[0].lanes);
        return <E::Acc as Real>::store_rest(x[1].simd, second, x[1].lanes);
    }
    let mut padded = [E::ZERO; LANES];
    E::store(&mut padded[..n], x);
    to.copy_from_slice(&padded[..to.len()]);
}

/// Whether numbers are stored in the type of the arithmetic.
const fn is_wide<E: Element>() -> bool {
    size_of::<E>() == size_of::<E::Acc>()
}

/// A pair of zeros.
#[inline(always)]
pub fn zeros<S: Simd, R: Real>(simd: S) -> Pair<S, R> {
    [Vector::splat(simd, R::ZERO); 2]
}

/// Loads two registers of numbers that are of the arithmetic type already.
#[inline(always)]
pub fn load<S: Simd, R: Real>(simd: S, from: &[R]) -> Pair<S, R> {
    let (lanes, _) = R::split::<S>(from);
    [Vector::new(simd, lanes[0]), Vector::new(simd, lanes[1])]
}

/// Stores two registers of numbers that stay of the arithmetic type.
#[inline(always)]
pub fn store<S: Simd, R: Real>(to: &mut [R], x: Pair<S, R>) {
    let (lanes, _) = R::split_mut::<S>(to);
    (lanes[0], lanes[1]) = (x[0].lanes, x[1].lanes);
}

/// The numbers with these bits.
#[inline(always)]
fn float<S: Simd>(simd: S, bits: S::u32s) -> Vector<S, f32> {
    Vector::new(simd, simd.transmute_f32s_u32s(bits))
}

/// Two 16-bit numbers in each lane.
#[inline(always)]
fn load_pairs<S: Simd, T: Pod>(from: &[T]) -> S::u32s {
    pod_read_unaligned(&cast_slice(from)[..size_of::<S::u32s>()])
}

#[inline(always)]
fn store_pairs<S: Simd, T: Pod>(to: &mut [T], x: S::u32s) {
    cast_slice_mut(to)[..size_of::<S::u32s>()].copy_from_slice(bytes_of(&x));
}

/// Widens a pair: the numbers in the low halves of the lanes, and those in the high halves.
#[inline(always)]
pub fn load_bf16<S: Simd>(simd: S, from: &[bf16]) -> Pair<S, f32> {
    let pairs = load_pairs::<S, _>(from);
    let low = simd.wrapping_dyn_shl_u32s(pairs, simd.splat_u32s(16));
    let high = simd.and_u32s(pairs, simd.splat_u32s(0xffff_0000));
    [float(simd, low), float(simd, high)]
}

/// Narrows a pair, see [`load_bf16`].
#[inline(always)]
pub fn store_bf16<S: Simd>(to: &mut [bf16], x: Pair<S, f32>) {
    let simd = x[0].simd;
    let (low, high) = (round_bf16(x[0]), round_bf16(x[1]));
    let low = simd.wrapping_dyn_shr_u32s(low, simd.splat_u32s(16));
    let high = simd.and_u32s(high, simd.splat_u32s(0xffff_0000));
    store_pairs::<S, _>(to, simd.or_u32s(low, high));
}

/// The rounded number in the high half of each lane; the low half is ignored.
#[inline(always)]
fn round_bf16<S: Simd>(x: Vector<S, f32>) -> S::u32s {
    let simd = x.simd;
    let c = |bits: u32| simd.splat_u32s(bits);
    let bits = simd.transmute_u32s_f32s(x.lanes);
    // Just under half of the last kept place, and the rest if that place is odd: to nearest even.
    let odd = simd.and_u32s(simd.wrapping_dyn_shr_u32s(bits, c(16)), c(1));
    let rounded = simd.add_u32s(bits, simd.add_u32s(odd, c(0x7fff)));
    // Rounding could carry a NaN into infinity, so NaNs are passed through as quiet NaNs.
    let quiet = simd.or_u32s(bits, c(0x40_0000));
    simd.select_u32s(simd.equal_f32s(x.lanes, x.lanes), rounded, quiet)
}

/// Widens a pair: by the machine's instruction where there is one for registers of this size, else by bits, the numbers in
/// the low halves of the lanes and those in the high halves.
#[inline(always)]
pub fn load_f16<S: Simd>(simd: S, from: &[f16]) -> Pair<S, f32> {
    #[cfg(target_arch = "x86_64")]
    if avx512::is::<S>() {
        return avx512::load_f16(simd, from);
    }
    let pairs = load_pairs::<S, _>(from);
    let low = simd.and_u32s(pairs, simd.splat_u32s(0xffff));
    let high = simd.wrapping_dyn_shr_u32s(pairs, simd.splat_u32s(16));
    [widen_f16(simd, low), widen_f16(simd, high)]
}

/// Narrows a pair, see [`load_f16`].
#[inline(always)]
pub fn store_f16<S: Simd>(to: &mut [f16], x: Pair<S, f32>) {
    #[cfg(target_arch = "x86_64")]
    if avx512::is::<S>() {
        return avx512::store_f16(to, x);
    }
    let simd = x[0].simd;
    let high = simd.wrapping_dyn_shl_u32s(narrow_f16(x[1]), simd.splat_u32s(16));
    store_pairs::<S, _>(to, simd.or_u32s(narrow_f16(x[0]), high));
}

/// From the bits in the low half of each lane.
#[inline(always)]
fn widen_f16<S: Simd>(simd: S, bits: S::u32s) -> Vector<S, f32> {
    let c = |bits: u32| simd.splat_u32s(bits);
    let magnitude = simd.wrapping_dyn_shl_u32s(simd.and_u32s(bits, c(0x7fff)), c(13));
    let exponent = simd.and_u32s(magnitude, c(0x0f80_0000));
    // Exponents count from 15 here and from 127 there.
    let normal = simd.add_u32s(magnitude, c(112 << 23));
    // A subnormal is a multiple of 2^-24: put it under the leading bit of 2^-14, and take that away.
    let least = c(113 << 23);
    let subnormal = float(simd, simd.add_u32s(magnitude, least)) - float(simd, least);
    let subnormal = simd.transmute_u32s_f32s(subnormal.lanes);
    let special = simd.or_u32s(magnitude, c(0x7f80_0000));
    let wide = simd.select_u32s(simd.equal_u32s(exponent, c(0)), subnormal, normal);
    let wide = simd.select_u32s(simd.equal_u32s(exponent, c(0x0f80_0000)), special, wide);
    let sign = simd.wrapping_dyn_shl_u32s(simd.and_u32s(bits, c(0x8000)), c(16));
    float(simd, simd.or_u32s(wide, sign))
}

/// The bits in the low half of each lane, rounded to nearest even.
#[inline(always)]
fn narrow_f16<S: Simd>(x: Vector<S, f32>) -> S::u32s {
    let simd = x.simd;
    let c = |bits: u32| simd.splat_u32s(bits);
    let bits = simd.transmute_u32s_f32s(x.lanes);
    let magnitude = simd.and_u32s(bits, c(0x7fff_ffff));
    // Below 2^-14: adding 0.5 aligns the last kept place with that of the sum, which rounds to nearest even.
    let sum = x.abs() + x.constant(0.5);
    let subnormal = simd.sub_u32s(simd.transmute_u32s_f32s(sum.lanes), c(0.5_f32.to_bits()));
    // Rounding at the 13th bit; a carry out of the mantissa moves the exponent, up to infinity.
    let odd = simd.and_u32s(simd.wrapping_dyn_shr_u32s(magnitude, c(13)), c(1));
    let rebased = simd.sub_u32s(magnitude, c((112 << 23) - 0xfff));
    let normal = simd.wrapping_dyn_shr_u32s(simd.add_u32s(rebased, odd), c(13));
    let not_nan = simd.equal_f32s(x.lanes, x.lanes);
    let special = simd.select_u32s(not_nan, c(0x7c00), c(0x7e00));
    let small = simd.less_than_u32s(magnitude, c(113 << 23));
    let half = simd.select_u32s(small, subnormal, normal);
    let large = simd.less_than_u32s(magnitude, c(0x4780_0000));
    let half = simd.select_u32s(large, half, special);
    let sign = simd.and_u32s(simd.wrapping_dyn_shr_u32s(bits, c(16)), c(0x8000));
    simd.or_u32s(half, sign)
}

/// Conversions with an instruction in AVX-512. (AVX2 almost always comes with F16C, but not by definition.)
#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::any::TypeId;
    use std::arch::x86_64::{
        __m256i, __m512, _MM_FROUND_TO_NEAREST_INT, _mm512_cvtph_ps, _mm512_cvtps_ph,
    };

    use bytemuck::{bytes_of, cast, cast_slice, cast_slice_mut, pod_read_unaligned};
    use half::f16;
    use pulp::Simd;
    use pulp::x86::V4;

    use super::Pair;
    use crate::simd::vector::Vector;

    /// Whether `S` is AVX-512: known to the compiler.
    #[inline(always)]
    pub fn is<S: Simd>() -> bool {
        TypeId::of::<S>() == TypeId::of::<V4>()
    }

    /// See [`super::load_f16`].
    #[inline(always)]
    pub fn load_f16<S: Simd>(simd: S, from: &[f16]) -> Pair<S, f32> {
        assert!(is::<S>());
        [widen(simd, &from[..16]), widen(simd, &from[16..32])]
    }

    // Not a closure: those are compiled apart, without the caller's instruction set.
    #[inline(always)]
    fn widen<S: Simd>(simd: S, half: &[f16]) -> Vector<S, f32> {
        let half: __m256i = pod_read_unaligned(cast_slice(half));
        // SAFETY: `simd` is there, so the machine has AVX-512.
        let wide: __m512 = unsafe { _mm512_cvtph_ps(half) };
        Vector::new(simd, cast(wide))
    }

    /// See [`super::store_f16`].
    #[inline(always)]
    pub fn store_f16<S: Simd>(to: &mut [f16], x: Pair<S, f32>) {
        assert!(is::<S>());
        for (to, x) in to.chunks_exact_mut(16).zip(x) {
            let wide: __m512 = cast(x.lanes);
            // SAFETY: `x.simd` is there, so the machine has AVX-512.
            let half = unsafe { _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(wide) };
            cast_slice_mut(to).copy_from_slice(bytes_of(&half));
        }
    }
}

#[cfg(test)]
mod tests {
    use pulp::WithSimd;

    use super::*;
    use crate::simd::level::Level;

    /// Converts numbers through the registers: `f32` to `E` and back.
    struct Through<'a, E>(&'a [f32], &'a mut [E], &'a mut [f32]);

    impl<E: Element<Acc = f32>> WithSimd for Through<'_, E> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let n = pair_len::<S, f32>();
            let wide = self.0.chunks_exact(n).zip(self.2.chunks_exact_mut(n));
            for ((from, back), narrow) in wide.zip(self.1.chunks_exact_mut(n)) {
                // Through the pair's own order of numbers.
                let mut ordered: Vec<E> = from.iter().map(|&x| E::narrow(x)).collect();
                let pair = E::load(simd, &ordered);
                store(back, pair);
                E::store(&mut ordered, pair);
                narrow.copy_from_slice(&ordered);
            }
        }
    }

    fn check<E: Element<Acc = f32>>(bits: fn(E) -> u16) {
        let floats: Vec<f32> = (0..1 << 16)
            .map(|i| f32::from_bits(i << 16 | 0x8001))
            .collect();
        for &level in Level::available() {
            let mut narrow = vec![E::ZERO; floats.len()];
            let mut back = vec![0.0; floats.len()];
            level.dispatch(Through(&floats, &mut narrow, &mut back));
            for (x, y) in floats.iter().zip(&narrow) {
                let same = bits(*y) == bits(E::narrow(*x)) || x.is_nan() && y.to_f64().is_nan();
                assert!(same, "{x:e} came back as {y:?} ({level:?})");
            }
            // The same numbers, in whatever order.
            let sort = |x: &mut Vec<u32>| x.sort_unstable();
            let number = |x: f32| if x.is_nan() { u32::MAX } else { x.to_bits() };
            let mut found: Vec<u32> = back.iter().map(|&x| number(x)).collect();
            let mut expected: Vec<u32> = floats
                .iter()
                .map(|&x| number(E::narrow(x).widen()))
                .collect();
            sort(&mut found);
            sort(&mut expected);
            assert!(found == expected, "{level:?}");
        }
    }

    #[test]
    fn f16_passes_through_registers() {
        check::<f16>(f16::to_bits);
    }

    #[test]
    fn bf16_passes_through_registers() {
        check::<bf16>(bf16::to_bits);
    }
}
