//! The elementary functions of the gates.

/// In `f32`: polynomials in plain operations, without branches.
pub mod single {
    use pulp::Simd;

    use crate::simd::vector::Vector;

    /// A polynomial from its coefficients, the highest power's first.
    #[inline(always)]
    fn horner<S: Simd, const N: usize>(
        coefficients: [f32; N],
        x: Vector<S, f32>,
    ) -> Vector<S, f32> {
        let mut p = x.constant(coefficients[0]);
        for k in 1..N {
            p = p.mul_add(x, x.constant(coefficients[k]));
        }
        p
    }

    /// `(p, 2^n)` with `e^x = 2^n (1 + p)`, `p = e^r - 1`, `x = n ln 2 + r` and `|r| ≤ ln 2 / 2`; for `x` of -87.33 to 88.
    #[inline(always)]
    fn exp_parts<S: Simd>(x: Vector<S, f32>) -> (Vector<S, f32>, Vector<S, f32>) {
        // Adding 1.5 · 2^23 leaves the rounded integer in the low bits of the sum.
        const ROUND: f32 = 12_582_912.0;
        // ln 2 in two parts; the first has so few bits that n times it is exact.
        const LN2_HIGH: f32 = 0.693_359_4;
        const LN2_LOW: f32 = -2.121_944_4e-4;
        // Minimax fit of (e^r - 1 - r) / r² for the relative error of e^r, which is under 4e-9.
        const P: [f32; 5] = [
            1.381_453_9e-3,
            8.368_745e-3,
            4.166_839e-2,
            1.666_652_1e-1,
            0.499_999_94,
        ];

        let simd = x.simd;
        let c = |value: f32| x.constant(value);
        let shifted = x.mul_add(c(std::f32::consts::LOG2_E), c(ROUND));
        let n = shifted - c(ROUND);
        let r = n.mul_add(c(-LN2_LOW), n.mul_add(c(-LN2_HIGH), x));
        let p = horner(P, r).mul_add(r * r, r);
        let bits = simd.transmute_u32s_f32s(shifted.lanes);
        let exponent = simd.wrapping_dyn_shl_u32s(bits, simd.splat_u32s(23));
        let power = simd.add_u32s(exponent, simd.splat_u32s(1.0_f32.to_bits()));
        (p, Vector::new(simd, simd.transmute_f32s_u32s(power)))
    }

    /// `e^-|x|`.
    #[inline(always)]
    pub fn exp_decay<S: Simd>(x: Vector<S, f32>) -> Vector<S, f32> {
        // Slightly above ln 2^-126.
        const LOW: f32 = -87.33;
        let x = -x.abs();
        // Below LOW, and for NaN, the power is meaningless; the first is cut to 0, the second is NaN in p too.
        let (p, power) = exp_parts(x);
        let one = x.constant(1.0);
        x.less(x.constant(LOW))
            .select(x.constant(0.0), (p + one) * power)
    }

    /// `1 - e^-2|x|` is `2 e^-|x| sinh |x|`: its series where the difference would cancel.
    #[inline(always)]
    pub fn decay<S: Simd>(x: Vector<S, f32>) -> (Vector<S, f32>, Vector<S, f32>) {
        // sinh x / x up to x^6; what is left out is under 2^-26 below 1/2.
        const P: [f32; 4] = [1.0 / 5040.0, 1.0 / 120.0, 1.0 / 6.0, 1.0];

        let x = x.abs();
        let e = x.exp_decay();
        let near = horner(P, x * x) * (x + x) * e;
        let one = x.constant(1.0);
        let far = (one - e) * (one + e);
        (e, x.less(x.constant(0.5)).select(near, far))
    }

    /// `(e^2x - 1) / (e^2x + 1)`, with `e^2x - 1` computed without cancellation, so that the result is accurate for small `x`.
    #[inline(always)]
    pub fn tanh<S: Simd>(x: Vector<S, f32>) -> Vector<S, f32> {
        // Beyond, the tangent rounds to ±1.
        const END: f32 = 40.0;
        let c = |value: f32| x.constant(value);
        let twice = x + x;
        let twice = twice.less(c(-END)).select(c(-END), twice);
        let twice = c(END).less(twice).select(c(END), twice);
        let (p, power) = exp_parts(twice);
        let e = power.mul_add(p, power - c(1.0));
        let below = e + c(2.0);
        let inverse = c(1.0) / below;
        // One Newton step for the quotient, with the rounding error of `below`: near ±1 each error shows in 1 - tanh².
        let quotient = e * inverse;
        let minus = -quotient;
        let lost = e - (below - c(2.0));
        let rest = minus.mul_add(lost, minus.mul_add(below, e));
        rest.mul_add(inverse, quotient)
    }
}

/// In `f64`: the standard library's, number by number.
pub mod double {
    use bytemuck::cast_slice_mut;
    use pulp::Simd;

    use crate::simd::vector::Vector;

    #[inline(always)]
    fn map<S: Simd>(x: Vector<S, f64>, f: impl Fn(f64) -> f64) -> Vector<S, f64> {
        let mut lanes = x.lanes;
        for x in cast_slice_mut::<_, f64>(std::slice::from_mut(&mut lanes)) {
            *x = f(*x);
        }
        Vector::new(x.simd, lanes)
    }

    /// `e^-|x|`.
    #[inline(always)]
    pub fn exp_decay<S: Simd>(x: Vector<S, f64>) -> Vector<S, f64> {
        map(x, |x| (-x.abs()).exp())
    }

    /// `e^-|x|` and `1 - e^-2|x|`.
    #[inline(always)]
    pub fn decay<S: Simd>(x: Vector<S, f64>) -> (Vector<S, f64>, Vector<S, f64>) {
        (exp_decay(x), map(x, |x| -(-2.0 * x.abs()).exp_m1()))
    }

    /// The hyperbolic tangent.
    #[inline(always)]
    pub fn tanh<S: Simd>(x: Vector<S, f64>) -> Vector<S, f64> {
        map(x, f64::tanh)
    }
}

#[cfg(test)]
mod tests {
    use pulp::{Simd, WithSimd};

    use crate::simd::level::Level;
    use crate::simd::real::Real;
    use crate::simd::vector::Vector;

    /// A function of vectors, since closures cannot be generic.
    trait Function {
        fn call<S: Simd>(x: Vector<S, f32>) -> Vector<S, f32>;
    }

    /// Applies a function to every number.
    struct Map<'a, F>(&'a mut [f32], std::marker::PhantomData<F>);

    impl<F: Function> WithSimd for Map<'_, F> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let (lanes, rest) = f32::split_mut::<S>(self.0);
            for x in lanes {
                *x = F::call(Vector::new(simd, *x)).lanes;
            }
            let y = F::call(Vector::<S, f32>::new(simd, f32::load_rest(simd, rest)));
            f32::store_rest(simd, rest, y.lanes);
        }
    }

    fn map<F: Function>(level: Level, x: &[f32]) -> Vec<f32> {
        let mut y = x.to_vec();
        level.dispatch(Map::<F>(&mut y, std::marker::PhantomData));
        y
    }

    macro_rules! function {
        ($name:ident, $x:ident => $y:expr) => {
            struct $name;

            impl Function for $name {
                #[inline(always)]
                fn call<S: Simd>($x: Vector<S, f32>) -> Vector<S, f32> {
                    $y
                }
            }
        };
    }

    function!(ExpDecay, x => x.exp_decay());
    function!(Sigmoid, x => x.sigmoids().0);
    function!(Complement, x => x.sigmoids().1);
    function!(Tanh, x => x.tanh());
    function!(Decayed, x => x.decay().1);

    /// Distance in units of the last place of the nearest `f32` to `exact`.
    fn ulps(found: f32, exact: f64) -> f64 {
        let nearest = exact as f32;
        if found == nearest {
            return 0.0;
        }
        let exponent = (nearest.abs().to_bits() >> 23).max(1) as i32;
        ((f64::from(found) - exact) / 2_f64.powi(exponent - 150)).abs()
    }

    /// Checks a function at every 997th float of either sign, at every level of the machine.
    fn assert_within<F: Function>(allowed: f64, exact: impl Fn(f64) -> f64) {
        let floats = (0..0x7f80_0000_u32).step_by(997);
        let floats: Vec<f32> = floats
            .flat_map(|bits| [f32::from_bits(bits), -f32::from_bits(bits)])
            .collect();
        for &level in Level::available() {
            for (x, y) in floats.iter().zip(map::<F>(level, &floats)) {
                let error = ulps(y, exact(f64::from(*x)));
                assert!(error <= allowed, "{error} ulp at {x:e} ({level:?})");
            }
        }
    }

    /// Where `e^x` is subnormal, the result is 0.
    fn sigmoid(x: f64) -> f64 {
        match x {
            0.0.. => 1.0 / (1.0 + (-x).exp()),
            -87.33.. => x.exp() / (1.0 + x.exp()),
            _ => 0.0,
        }
    }

    #[test]
    fn exp_decay_is_within_two_ulp() {
        assert_within::<ExpDecay>(2.0, |x| {
            if x.abs() <= 87.33 {
                (-x.abs()).exp()
            } else {
                0.0
            }
        });
    }

    #[test]
    fn sigmoids_are_accurate_on_both_sides() {
        assert_within::<Sigmoid>(4.0, sigmoid);
        assert_within::<Complement>(4.0, |x| sigmoid(-x));
    }

    #[test]
    fn what_a_decay_takes_is_accurate_near_zero_and_far() {
        assert_within::<Decayed>(5.0, |x| -(-2.0 * x.abs()).exp_m1());
    }

    #[test]
    fn tanh_is_accurate_near_zero_and_far() {
        assert_within::<Tanh>(3.0, f64::tanh);
    }

    #[test]
    fn ends_are_exact_and_nan_is_kept() {
        let x = [0.0, -0.0, 1e4, -1e4, f32::INFINITY, f32::NEG_INFINITY];
        for &level in Level::available() {
            assert_eq!(map::<ExpDecay>(level, &x), [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
            assert_eq!(map::<Sigmoid>(level, &x), [0.5, 0.5, 1.0, 0.0, 1.0, 0.0]);
            assert_eq!(map::<Complement>(level, &x), [0.5, 0.5, 0.0, 1.0, 0.0, 1.0]);
            assert_eq!(map::<Tanh>(level, &x), [0.0, 0.0, 1.0, -1.0, 1.0, -1.0]);
            assert_eq!(map::<Decayed>(level, &x), [0.0, 0.0, 1.0, 1.0, 1.0, 1.0]);
            for nan in [f32::NAN, -f32::NAN] {
                assert!(map::<ExpDecay>(level, &[nan])[0].is_nan());
                assert!(map::<Sigmoid>(level, &[nan])[0].is_nan());
                assert!(map::<Complement>(level, &[nan])[0].is_nan());
                assert!(map::<Tanh>(level, &[nan])[0].is_nan());
                assert!(map::<Decayed>(level, &[nan])[0].is_nan());
            }
        }
    }
}
