//! Comparison of results with a reference, shared by all operations; each operation has its own rule of acceptance.

#[cfg(feature = "gpu")]
pub mod transfer;

use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::Element;

/// The largest; NaN if any number is.
pub fn largest(x: impl Iterator<Item = f64>) -> f64 {
    // Not `f64::max`, which drops NaN.
    x.fold(0.0, |largest: f64, x| {
        if largest.is_nan() || x <= largest {
            largest
        } else {
            x
        }
    })
}

/// The largest absolute difference; NaN if any is.
///
/// # Panics
/// Where the lengths differ.
pub fn distance(x: &[f64], y: &[f64]) -> f64 {
    assert_eq!(x.len(), y.len());
    largest(x.iter().zip(y).map(|(x, y)| (x - y).abs()))
}

/// One tensor of a result compared with its reference.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The name of the tensor.
    pub tensor: String,
    /// The largest absolute error.
    pub error: f64,
    /// The largest absolute error that passes.
    pub allowed: f64,
}

impl Comparison {
    /// Whether the error is allowed; NaN never is.
    pub fn passes(&self) -> bool {
        self.error <= self.allowed
    }
}

/// The comparison of the element whose error is largest relative to its allowed error; NaN comes first.
///
/// # Panics
/// Where the lengths differ.
pub fn worst(
    tensor: &str,
    found: &[f64],
    reference: &[f64],
    allowed: impl Fn(usize) -> f64,
) -> Comparison {
    assert_eq!(found.len(), reference.len(), "{tensor}");
    let mut comparison = Comparison {
        tensor: tensor.into(),
        error: 0.0,
        allowed: 0.0,
    };
    for (i, (found, reference)) in found.iter().zip(reference).enumerate() {
        let (error, allowed) = ((found - reference).abs(), allowed(i));
        // By products, because the allowed error may be 0.
        let more = error * comparison.allowed > comparison.error * allowed;
        let first = comparison.allowed == 0.0 && comparison.error == 0.0;
        if more || first || error.is_nan() || (error > allowed && comparison.passes()) {
            comparison.error = error;
            comparison.allowed = allowed;
        }
        if error.is_nan() {
            break;
        }
    }
    comparison
}

/// The error that one rounding to storage may add to a number, and the error of one rounding of the arithmetic at 1.
pub fn roundings<E: Element>() -> (impl Fn(f64) -> f64, f64) {
    let arithmetic = if E::NAME == "f64" {
        f64::EPSILON
    } else {
        f64::from(f32::EPSILON)
    };
    // The smallest steps of the types; a GPU may also flush f32 subnormals to 0.
    let least = match E::NAME {
        "f16" => 2f64.powi(-25),
        "f64" => f64::MIN_POSITIVE,
        _ => f64::from(f32::MIN_POSITIVE),
    };
    (move |x: f64| 0.5 * E::EPSILON * x.abs() + least, arithmetic)
}

/// The numbers in a storage type, each rounded once.
pub fn stored<E: Element>(x: &[f64]) -> Vec<E> {
    x.iter().map(|&x| E::from_f64(x)).collect()
}

/// Stored numbers in `f64`, exactly.
pub fn wide<E: Element>(x: &[E]) -> Vec<f64> {
    x.iter().map(|x| x.to_f64()).collect()
}

/// The numbers as a storage type holds them.
pub fn rounded<E: Element>(x: &[f64]) -> Vec<f64> {
    wide::<E>(&stored(x))
}

/// Whether two results have the same tensors, bit by bit.
pub fn same_bits<'a>(
    a: impl IntoIterator<Item = &'a [f64]>,
    b: impl IntoIterator<Item = &'a [f64]>,
) -> bool {
    let bits = |x: &[f64]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    a.into_iter().map(bits).eq(b.into_iter().map(bits))
}

/// Random numbers (ChaCha8), so that a seed always gives the same data.
pub struct Random(ChaCha8Rng);

impl Random {
    /// The generator of a seed.
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Uniform in `[-bound, bound)`.
    pub fn within(&mut self, bound: f64) -> f64 {
        bound * ((self.bits() >> 11) as f64 / (1_u64 << 52) as f64 - 1.0)
    }

    /// Uniform below `end`, which is above 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0.random_range(0..end)
    }

    /// `n` numbers uniform in `[-bound, bound)`.
    pub fn vec(&mut self, n: usize, bound: f64) -> Vec<f64> {
        (0..n).map(|_| self.within(bound)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_compared_tensor_by_tensor() {
        let same = |a: &[&[f64]], b: &[&[f64]]| same_bits(a.iter().copied(), b.iter().copied());
        assert!(same(&[&[1.0, f64::NAN], &[]], &[&[1.0, f64::NAN], &[]]));
        assert!(!same(&[&[0.0]], &[&[-0.0]]));
        assert!(!same(&[&[1.0], &[2.0]], &[&[1.0, 2.0]]));
        assert!(!same(&[&[1.0]], &[&[1.0], &[2.0]]));
    }

    #[test]
    fn one_nan_makes_a_tensor_wrong() {
        assert!(distance(&[f64::NAN, 1.0, 2.0], &[0.0, 1.0, 2.5]).is_nan());
        assert!(distance(&[0.0, 1.0, f64::NAN], &[0.5, 1.0, 2.0]).is_nan());
        assert_eq!(distance(&[0.0, 1.0, 2.0], &[0.5, -1.0, 2.0]), 2.0);
        let comparison = Comparison {
            tensor: "h".into(),
            error: f64::NAN,
            allowed: f64::INFINITY,
        };
        assert!(!comparison.passes());
    }
}
