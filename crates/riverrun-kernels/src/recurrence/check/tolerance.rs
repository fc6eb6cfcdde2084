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
use crate::check::{Comparison, distance, largest};

/// Roundings of a step, see above.
const ROUNDINGS: f64 = 16.0;

/// Judges every tensor of `found`, for a problem of `steps` steps stored in `E`.
pub fn compare<E: Element>(
    steps: usize,
    found: &Outcome,
    naive: &Outcome,
    truth: &Outcome,
) -> Vec<Comparison> {
    let floor = E::EPSILON / 2.0 * (ROUNDINGS * steps.max(1) as f64).sqrt();
    let tensors = found
        .tensors()
        .into_iter()
        .zip(naive.tensors())
        .zip(truth.tensors());
    tensors
        .map(|(((tensor, found), (_, naive)), (_, truth))| Comparison {
            tensor,
            error: distance(found, truth),
            allowed: 2.0 * distance(naive, truth) + floor * largest(truth.iter().map(|x| x.abs())),
        })
        .collect()
}
