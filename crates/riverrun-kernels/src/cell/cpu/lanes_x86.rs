//! AVX-512 and AVX2 vectors, and the `f32` elementary functions on them.

use std::arch::x86_64::*;

use super::lanes::{Lanes, Task};

/// What the elementary functions need besides [`Lanes`].
trait Scale: Lanes<Real = f32> {
    /// `self / b`.
    fn div(self, b: Self) -> Self;
    /// `self` held to `low..=high`. NaN stays.
    fn clamp(self, low: f32, high: f32) -> Self;
    /// To the nearest integer.
    fn round(self) -> Self;
    /// `self · 2^n` for integers `n` of -126 to 128; infinite at 128.
    fn scale(self, n: Self) -> Self;
}

/// One operation on every vector. The chains of several functions side by side keep the processor busy, which looks ahead
/// no further than one of them is long.
#[inline(always)]
fn each<L: Copy, const N: usize>(mut x: [L; N], f: impl Fn(usize, L) -> L) -> [L; N] {
    for i in 0..N {
        x[i] = f(i, x[i]);
    }
    x
}

/// `(n, p)` with `e^x = 2^n (1 + p)`: `p = e^r - 1` by Cephes' polynomial for `|r| ≤ ln 2 / 2`, to a relative ulp or so.
#[inline(always)]
fn exp_parts<L: Scale, const N: usize>(x: [L; N]) -> ([L; N], [L; N]) {
    // ln 2 in two parts; the first has so few bits that n times it is exact.
    const LN2_HIGH: f32 = 355.0 / 512.0;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let n = each(x, |_, x| x.mul(L::splat(std::f32::consts::LOG2_E)));
    let n = each(n, |_, n| n.round());
    let r = each(x, |i, x| n[i].mul_add(L::splat(-LN2_HIGH), x));
    let r = each(r, |i, r| n[i].mul_add(L::splat(-LN2_LOW), r));
    let mut p = [L::splat(1.987_569_2e-4); N];
    for coefficient in [
        1.398_2e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        1.666_666_5e-1,
        0.5,
    ] {
        p = each(p, |i, p| p.mul_add(r[i], L::splat(coefficient)));
    }
    let square = each(r, |_, r| r.mul(r));
    (n, each(p, |i, p| p.mul_add(square[i], r[i])))
}

/// `1 / (1 + e^-x)`, to about 2 ulp.
#[inline(always)]
fn sigmoid<L: Scale, const N: usize>(x: [L; N]) -> [L; N] {
    let one = L::splat(1.0);
    // Past these ends the result is 1, and 0 as 1 / ∞.
    let x = each(x, |_, x| L::splat(0.0).sub(x).clamp(-87.0, 89.0));
    let (n, p) = exp_parts(x);
    let e = each(p, |i, p| p.add(one).scale(n[i]));
    let e = each(e, |_, e| e.add(one));
    each(e, |_, e| one.div(e))
}

/// `(e^2x - 1) / (e^2x + 1)`, to 2 ulp, and half of one near ±1, where `1 - tanh²` shows every error; `e^2x - 1` is made without
/// cancellation, so that small `x` keep their digits.
#[inline(always)]
fn tanh<L: Scale, const N: usize>(x: [L; N]) -> [L; N] {
    let one = L::splat(1.0);
    let two = one.add(one);
    // Beyond, the tangent rounds to ±1.
    let (n, p) = exp_parts(each(x, |_, x| x.add(x).clamp(-40.0, 40.0)));
    let power = each(n, |_, n| one.scale(n));
    let e = each(p, |i, p| power[i].mul_add(p, power[i].sub(one)));
    let below = each(e, |_, e| e.add(two));
    let inverse = each(below, |_, below| one.div(below));
    // One Newton step for the quotient, with what rounding `below` has lost.
    let minus = each(e, |i, e| L::splat(0.0).sub(e.mul(inverse[i])));
    let rest = each(e, |i, e| {
        minus[i].mul_add(e.sub(below[i].sub(two)), minus[i].mul_add(below[i], e))
    });
    each(rest, |i, rest| {
        rest.mul_add(inverse[i], e[i].mul(inverse[i]))
    })
}

macro_rules! vector {
    (
        $(#[$doc:meta])* $name:ident, $inner:ty, $real:ty, $width:literal, $registers:literal, $features:literal,
        $splat:ident, $load:ident, $store:ident, $add:ident, $sub:ident, $mul:ident, $fma:ident, $max:ident,
        where_positive $where_positive:expr, sigmoid $sigmoid:expr, tanh $tanh:expr
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(super) struct $name($inner);

        // SAFETY, for every intrinsic below: values of this type are made only where `Lanes::run` of it was called,
        // whose caller vouches for the instructions; memory is the caller's promise.
        impl Lanes for $name {
            type Real = $real;
            const WIDTH: usize = $width;
            const REGISTERS: usize = $registers;

            #[inline(always)]
            unsafe fn run(task: impl Task<Self>) {
                #[target_feature(enable = $features)]
                fn inside(task: impl Task<$name>) {
                    task.run();
                }
                unsafe { inside(task) }
            }
            #[inline(always)]
            fn splat(x: $real) -> Self {
                unsafe { Self($splat(x)) }
            }
            #[inline(always)]
            unsafe fn load(from: *const $real) -> Self {
                unsafe { Self($load(from)) }
            }
            #[inline(always)]
            unsafe fn store(self, to: *mut $real) {
                unsafe { $store(to, self.0) }
            }
            #[inline(always)]
            fn add(self, b: Self) -> Self {
                unsafe { Self($add(self.0, b.0)) }
            }
            #[inline(always)]
            fn sub(self, b: Self) -> Self {
                unsafe { Self($sub(self.0, b.0)) }
            }
            #[inline(always)]
            fn mul(self, b: Self) -> Self {
                unsafe { Self($mul(self.0, b.0)) }
            }
            #[inline(always)]
            fn mul_add(self, b: Self, c: Self) -> Self {
                unsafe { Self($fma(self.0, b.0, c.0)) }
            }
            #[inline(always)]
            fn relu(self) -> Self {
                // Of an unordered pair the instruction takes the second.
                unsafe { Self($max($splat(0.0), self.0)) }
            }
            #[inline(always)]
            fn where_positive(self, gate: Self) -> Self {
                unsafe { Self($where_positive(self.0, gate.0)) }
            }
            #[inline(always)]
            fn sigmoid<const N: usize>(x: [Self; N]) -> [Self; N] {
                $sigmoid(x)
            }
            #[inline(always)]
            fn tanh<const N: usize>(x: [Self; N]) -> [Self; N] {
                $tanh(x)
            }
        }
    };
}

/// Applies a scalar function to every lane.
macro_rules! lane_by_lane {
    ($width:literal, $f:expr) => {
        |x: [Self; N]| {
            x.map(|x| {
                let mut lanes = [0.0; $width];
                // SAFETY: the array is as wide as the vector.
                unsafe {
                    x.store(lanes.as_mut_ptr());
                    Self::load(lanes.map($f).as_ptr())
                }
            })
        }
    };
}

vector!(
    /// AVX-512, `f32`.
    F32x16, __m512, f32, 16, 32, "avx2,fma,avx512f,avx512vl",
    _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_add_ps, _mm512_sub_ps, _mm512_mul_ps, _mm512_fmadd_ps, _mm512_max_ps,
    where_positive |x, gate| _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(gate, _mm512_setzero_ps()), x),
    sigmoid sigmoid, tanh tanh
);
vector!(
    /// AVX2, `f32`.
    F32x8, __m256, f32, 8, 16, "avx2,fma",
    _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_add_ps, _mm256_sub_ps, _mm256_mul_ps, _mm256_fmadd_ps, _mm256_max_ps,
    where_positive |x, gate| _mm256_and_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(gate, _mm256_setzero_ps()), x),
    sigmoid sigmoid, tanh tanh
);
vector!(
    /// AVX-512, `f64`.
    F64x8, __m512d, f64, 8, 32, "avx2,fma,avx512f,avx512vl",
    _mm512_set1_pd, _mm512_loadu_pd, _mm512_storeu_pd, _mm512_add_pd, _mm512_sub_pd, _mm512_mul_pd, _mm512_fmadd_pd, _mm512_max_pd,
    where_positive |x, gate| _mm512_maskz_mov_pd(_mm512_cmp_pd_mask::<_CMP_GT_OQ>(gate, _mm512_setzero_pd()), x),
    sigmoid lane_by_lane!(8, |x: f64| 1.0 / (1.0 + (-x).exp())), tanh lane_by_lane!(8, f64::tanh)
);
vector!(
    /// AVX2, `f64`.
    F64x4, __m256d, f64, 4, 16, "avx2,fma",
    _mm256_set1_pd, _mm256_loadu_pd, _mm256_storeu_pd, _mm256_add_pd, _mm256_sub_pd, _mm256_mul_pd, _mm256_fmadd_pd, _mm256_max_pd,
    where_positive |x, gate| _mm256_and_pd(_mm256_cmp_pd::<_CMP_GT_OQ>(gate, _mm256_setzero_pd()), x),
    sigmoid lane_by_lane!(4, |x: f64| 1.0 / (1.0 + (-x).exp())), tanh lane_by_lane!(4, f64::tanh)
);

// SAFETY of the intrinsics: as in `vector`.
impl Scale for F32x16 {
    #[inline(always)]
    fn div(self, b: Self) -> Self {
        unsafe { Self(_mm512_div_ps(self.0, b.0)) }
    }
    #[inline(always)]
    fn clamp(self, low: f32, high: f32) -> Self {
        unsafe {
            Self(_mm512_max_ps(
                _mm512_set1_ps(low),
                _mm512_min_ps(_mm512_set1_ps(high), self.0),
            ))
        }
    }
    #[inline(always)]
    fn round(self) -> Self {
        unsafe {
            Self(_mm512_roundscale_ps::<
                { _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC },
            >(self.0))
        }
    }
    #[inline(always)]
    fn scale(self, n: Self) -> Self {
        unsafe { Self(_mm512_scalef_ps(self.0, n.0)) }
    }
}

// SAFETY of the intrinsics: as in `vector`.
impl Scale for F32x8 {
    #[inline(always)]
    fn div(self, b: Self) -> Self {
        unsafe { Self(_mm256_div_ps(self.0, b.0)) }
    }
    #[inline(always)]
    fn clamp(self, low: f32, high: f32) -> Self {
        unsafe {
            Self(_mm256_max_ps(
                _mm256_set1_ps(low),
                _mm256_min_ps(_mm256_set1_ps(high), self.0),
            ))
        }
    }
    #[inline(always)]
    fn round(self) -> Self {
        unsafe {
            Self(_mm256_round_ps::<
                { _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC },
            >(self.0))
        }
    }
    #[inline(always)]
    fn scale(self, n: Self) -> Self {
        unsafe {
            let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n.0), _mm256_set1_epi32(127));
            Self(_mm256_mul_ps(
                self.0,
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent)),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Apply<'a> {
        x: &'a [f32],
        y: &'a mut [f32],
        tanh: bool,
    }

    impl<L: Lanes<Real = f32>> Task<L> for Apply<'_> {
        #[inline(always)]
        fn run(self) {
            for (x, y) in self
                .x
                .chunks_exact(L::WIDTH)
                .zip(self.y.chunks_exact_mut(L::WIDTH))
            {
                // SAFETY: the chunks are as long as a vector.
                unsafe {
                    let x = L::load(x.as_ptr());
                    let [result] = if self.tanh {
                        L::tanh([x])
                    } else {
                        L::sigmoid([x])
                    };
                    result.store(y.as_mut_ptr());
                }
            }
        }
    }

    /// The function at every float whose bits are a multiple of 997, of either sign.
    fn sampled<L: Lanes<Real = f32>>(tanh: bool) -> impl Iterator<Item = (f64, f64)> {
        let mut x: Vec<f32> = (0..0x7f80_0000_u32)
            .step_by(997)
            .map(f32::from_bits)
            .collect();
        x.extend(x.clone().iter().map(|x| -x));
        x.truncate(x.len() / 16 * 16);
        let mut y = vec![0.0; x.len()];
        // SAFETY: the tests that call this have asked for the instructions.
        unsafe {
            L::run(Apply {
                x: &x,
                y: &mut y,
                tanh,
            })
        };
        x.into_iter()
            .map(f64::from)
            .zip(y.into_iter().map(f64::from))
    }

    fn ulps(found: f64, exact: f64) -> f64 {
        let exponent = (exact.abs() as f32).to_bits() as i32 >> 23;
        (found - exact).abs() / 2f64.powi(exponent.max(1) - 150)
    }

    fn check<L: Lanes<Real = f32>>() {
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let tanh = sampled::<L>(true)
            .map(|(x, y)| ulps(y, x.tanh()))
            .fold(0.0, f64::max);
        assert!(tanh <= 2.5, "tanh: {tanh} ulp");
        // Results that are not normal numbers come out as 0.
        let normal = sampled::<L>(false).filter(|(x, _)| *x > -87.0);
        let worst = normal.map(|(x, y)| ulps(y, sigmoid(x))).fold(0.0, f64::max);
        assert!(worst <= 2.5, "sigmoid: {worst} ulp");
        let far = sampled::<L>(false).filter(|(x, _)| *x <= -87.0);
        assert!(far.fold(0.0, |worst: f64, (_, y)| worst.max(y)) < 2e-38);
    }

    /// The ends, and NaN.
    fn edges<L: Lanes<Real = f32>>() {
        let x = [
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            1e30,
            -1e30,
            0.0,
            -0.0,
            100.0,
        ];
        let x: Vec<f32> = x.into_iter().cycle().take(16).collect();
        let mut y = [7.0; 16];
        // SAFETY: the tests that call this have asked for the instructions.
        unsafe {
            L::run(Apply {
                x: &x,
                y: &mut y,
                tanh: true,
            })
        };
        assert_eq!(
            [y[0], y[1], y[3], y[4], y[5], y[6], y[7]],
            [1.0, -1.0, 1.0, -1.0, 0.0, 0.0, 1.0]
        );
        assert!(y[2].is_nan());
        // SAFETY: as above.
        unsafe {
            L::run(Apply {
                x: &x,
                y: &mut y,
                tanh: false,
            })
        };
        assert_eq!(
            [y[0], y[1], y[3], y[4], y[5], y[6], y[7]],
            [1.0, 0.0, 1.0, 0.0, 0.5, 0.5, 1.0]
        );
        assert!(y[2].is_nan());
    }

    #[test]
    fn elementary_functions_are_accurate() {
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            check::<F32x8>();
            edges::<F32x8>();
            if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl") {
                check::<F32x16>();
                edges::<F32x16>();
            }
        }
    }
}
