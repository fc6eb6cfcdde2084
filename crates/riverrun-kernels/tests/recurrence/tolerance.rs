//! The one rule by which a result is accepted.
//!
//! ```text
//! max |found - truth| <= 2 max |naive - truth| + eps sqrt(T) max |truth|
//! ```
//!
//! over each tensor, where `truth` is the oracle's and `naive` the textbook computation in the storage type
//! (see [`crate::naive`]), on the same inputs rounded to that type.
//!
//! **First term.** A kernel may order and fuse its operations otherwise than the textbook, so it cannot be held to the
//! textbook's very error; but it rounds no more often, so it is held to twice that.
//!
//! **Second term.** The naive error is itself a sample, and can be near zero by luck (short sequences, few channels)
//! or by construction (`f64`, where naive and oracle agree). A result that is right can still differ from the truth
//! by rounding alone: each step adds an error of at most `eps / 2` of its result in each of a few operations. With
//! `|a| <= 1` no step amplifies the errors of earlier ones, so after `T` steps they are a sum of `T` independent
//! errors, none larger than about `eps` times the scale of the tensor, and such a sum grows like `sqrt(T)`. `eps` is
//! that of the storage type, in which every result is stored.

use riverrun_kernels::Element;

use crate::case::Outcome;

fn largest(x: impl Iterator<Item = f64>) -> f64 {
    // Not `f64::max`, which drops NaN.
    x.fold(0.0, |largest, x| if x <= largest { largest } else { x })
}

fn distance(x: &[f64], y: &[f64]) -> f64 {
    assert_eq!(x.len(), y.len());
    largest(x.iter().zip(y).map(|(x, y)| (x - y).abs()))
}

/// Asserts that every tensor of `found` is right, for a problem of `steps` steps stored in `E`.
#[track_caller]
pub fn assert_right<E: Element>(
    what: &str,
    steps: usize,
    found: &Outcome,
    naive: &Outcome,
    truth: &Outcome,
) {
    let tensors = found
        .tensors()
        .into_iter()
        .zip(naive.tensors())
        .zip(truth.tensors());
    for (((name, found), (_, naive)), (_, truth)) in tensors {
        let floor = E::EPSILON * (steps.max(1) as f64).sqrt();
        let allowed = 2.0 * distance(naive, truth) + floor * largest(truth.iter().map(|x| x.abs()));
        let error = distance(found, truth);
        assert!(
            error <= allowed,
            "{what} in {}: {name} off by {error:e}, allowed {allowed:e}",
            E::NAME
        );
    }
}
