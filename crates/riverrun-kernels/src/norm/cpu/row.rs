//! A row and its statistics.

use pulp::Simd;

use crate::Element;
use crate::norm::{Kind, Spec};
use crate::simd::pair::{LANES, Pair, load_padded, pair_len, store, zeros};
use crate::simd::real::Real;
use crate::simd::vector::Vector;

/// The sum of the numbers of a pair.
#[inline(always)]
pub(super) fn total<S: Simd, R: Real>(x: Pair<S, R>) -> R {
    let mut numbers = [R::ZERO; LANES];
    store(&mut numbers[..pair_len::<S, R>()], x);
    numbers.into_iter().fold(R::ZERO, |sum, x| sum + x)
}

/// The mean to subtract: that of the row, or 0.
#[inline(always)]
pub(super) fn mean<S: Simd, E: Element>(simd: S, kind: Kind, x: &[E]) -> Vector<S, E::Acc> {
    if kind == Kind::Rms {
        return Vector::splat(simd, E::Acc::ZERO);
    }
    let mut sum: Pair<S, E::Acc> = zeros(simd);
    for x in x.chunks(pair_len::<S, E::Acc>()) {
        let x: Pair<S, E::Acc> = load_padded(simd, x);
        sum = [sum[0] + x[0], sum[1] + x[1]];
    }
    Vector::splat(simd, total(sum) / E::Acc::from_f64(x.len() as f64))
}

/// A pair, or the beginning of one, less the mean; zeros after it.
#[inline(always)]
pub(super) fn centred<S: Simd, E: Element>(
    simd: S,
    kind: Kind,
    x: &[E],
    mean: Vector<S, E::Acc>,
) -> Pair<S, E::Acc> {
    let n = pair_len::<S, E::Acc>();
    let c: Pair<S, E::Acc> = load_padded(simd, x);
    if kind == Kind::Rms {
        return c;
    }
    let c = [c[0] - mean, c[1] - mean];
    if x.len() == n {
        return c;
    }
    let ones = [E::from_f64(1.0); LANES];
    let there: Pair<S, E::Acc> = load_padded(simd, &ones[..x.len()]);
    [c[0] * there[0], c[1] * there[1]]
}

/// `ρ`, from the sum of the squares.
#[inline(always)]
pub(super) fn scale<R: Real>(spec: &Spec, squares: R, dim: usize) -> R {
    let square = squares / R::from_f64(dim as f64);
    R::ONE / (square + R::from_f64(spec.epsilon)).sqrt()
}
