//! What every check of a result against the truth shares; the rule of acceptance is each operation's own.

#[cfg(feature = "gpu")]
pub mod transfer;

use crate::Element;

/// The largest; NaN if any is.
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

/// One tensor of a result against the truth.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// Which tensor.
    pub tensor: String,
    /// The largest absolute error.
    pub error: f64,
    /// The largest that is right.
    pub allowed: f64,
}

impl Comparison {
    /// Whether the error is within what is allowed; NaN never is.
    pub fn passes(&self) -> bool {
        self.error <= self.allowed
    }
}

/// The verdict on the element whose error is the largest part of what is allowed for it; NaN comes before all.
///
/// # Panics
/// Where the lengths differ.
pub fn worst(
    tensor: &str,
    found: &[f64],
    truth: &[f64],
    allowed: impl Fn(usize) -> f64,
) -> Comparison {
    assert_eq!(found.len(), truth.len(), "{tensor}");
    let mut verdict = Comparison {
        tensor: tensor.into(),
        error: 0.0,
        allowed: 0.0,
    };
    for (i, (found, truth)) in found.iter().zip(truth).enumerate() {
        let (error, allowed) = ((found - truth).abs(), allowed(i));
        // By products, for what is allowed may be 0.
        let more = error * verdict.allowed > verdict.error * allowed;
        let first = verdict.allowed == 0.0 && verdict.error == 0.0;
        if more || first || error.is_nan() || (error > allowed && verdict.passes()) {
            verdict.error = error;
            verdict.allowed = allowed;
        }
        if error.is_nan() {
            break;
        }
    }
    verdict
}

/// What a single rounding to storage may add to a number, and one of the arithmetic to a number of size 1.
pub fn roundings<E: Element>() -> (impl Fn(f64) -> f64, f64) {
    let arithmetic = if E::NAME == "f64" {
        f64::EPSILON
    } else {
        f64::from(f32::EPSILON)
    };
    // The smallest steps of the types; a GPU may also take what is subnormal in f32 for 0.
    let least = match E::NAME {
        "f16" => 2f64.powi(-25),
        "f64" => f64::MIN_POSITIVE,
        _ => f64::from(f32::MIN_POSITIVE),
    };
    (move |x: f64| 0.5 * E::EPSILON * x.abs() + least, arithmetic)
}

/// A small generator (SplitMix64), so that a seed gives the same data for ever.
pub struct Random(pub u64);

impl Random {
    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `[-bound, bound)`.
    pub fn within(&mut self, bound: f64) -> f64 {
        bound * ((self.bits() >> 11) as f64 / (1_u64 << 52) as f64 - 1.0)
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
    fn one_nan_makes_a_tensor_wrong() {
        assert!(distance(&[f64::NAN, 1.0, 2.0], &[0.0, 1.0, 2.5]).is_nan());
        assert!(distance(&[0.0, 1.0, f64::NAN], &[0.5, 1.0, 2.0]).is_nan());
        assert_eq!(distance(&[0.0, 1.0, 2.0], &[0.5, -1.0, 2.0]), 2.0);
        let verdict = Comparison {
            tensor: "h".into(),
            error: f64::NAN,
            allowed: f64::INFINITY,
        };
        assert!(!verdict.passes());
    }
}
