//! The one rule by which a result is accepted.
//!
//! ```text
//! max |found - truth| <= 2 max |naive - truth| + eps / 2 sqrt(16 T) max |truth|
//! ```
//!
//! over each tensor, where `truth` is the oracle's and `naive` the textbook computation in the storage type
//! (see [`super::naive`]), on the same inputs rounded to that type.
//!
//! **First term.** A kernel may order and fuse its operations otherwise than the textbook, so it cannot be held to the
//! textbook's very error; but it rounds no more often, so it is held to twice that.
//!
//! **Second term.** The naive error is itself a sample, and can be near zero by luck (short sequences, few channels)
//! or by construction (`f64`, where naive and oracle nearly agree). A result that is right still differs from the truth
//! by rounding: from the inputs to a gradient a step rounds about 16 times (two elementary functions, two divisions,
//! the products and sums), each time by at most `eps / 2` of a number no larger than the scale of the tensor. With
//! `|a| <= 1` no step amplifies the errors of earlier ones, so after `T` steps they are a sum of `16 T` independent
//! errors, which grows like `eps / 2 sqrt(16 T)`. `eps` is that of the storage type, in which every result is kept.

use super::Outcome;
use crate::Element;

/// Roundings of a step, see above.
const ROUNDINGS: f64 = 16.0;

fn largest(x: impl Iterator<Item = f64>) -> f64 {
    // Not `f64::max`, which drops NaN.
    x.fold(0.0, |largest: f64, x| {
        if largest.is_nan() || x <= largest {
            largest
        } else {
            x
        }
    })
}

fn distance(x: &[f64], y: &[f64]) -> f64 {
    assert_eq!(x.len(), y.len());
    largest(x.iter().zip(y).map(|(x, y)| (x - y).abs()))
}

/// One tensor of a result against the truth.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// Which tensor.
    pub tensor: String,
    /// The largest absolute error.
    pub error: f64,
    /// The largest that is right.
    pub allowed: f64,
}

impl Verdict {
    /// Whether the error is within what is allowed; NaN never is.
    pub fn right(&self) -> bool {
        self.error <= self.allowed
    }
}

/// Judges every tensor of `found`, for a problem of `steps` steps stored in `E`.
pub fn judge<E: Element>(
    steps: usize,
    found: &Outcome,
    naive: &Outcome,
    truth: &Outcome,
) -> Vec<Verdict> {
    let floor = E::EPSILON / 2.0 * (ROUNDINGS * steps.max(1) as f64).sqrt();
    let tensors = found
        .tensors()
        .into_iter()
        .zip(naive.tensors())
        .zip(truth.tensors());
    tensors
        .map(|(((tensor, found), (_, naive)), (_, truth))| Verdict {
            tensor,
            error: distance(found, truth),
            allowed: 2.0 * distance(naive, truth) + floor * largest(truth.iter().map(|x| x.abs())),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_nan_makes_a_tensor_wrong() {
        assert!(distance(&[f64::NAN, 1.0, 2.0], &[0.0, 1.0, 2.5]).is_nan());
        assert!(distance(&[0.0, 1.0, f64::NAN], &[0.5, 1.0, 2.0]).is_nan());
        assert_eq!(distance(&[0.0, 1.0, 2.0], &[0.5, -1.0, 2.0]), 2.0);
        let verdict = Verdict {
            tensor: "h".into(),
            error: f64::NAN,
            allowed: f64::INFINITY,
        };
        assert!(!verdict.right());
    }
}
