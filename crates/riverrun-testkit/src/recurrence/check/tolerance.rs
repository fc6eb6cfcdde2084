//! The rule that accepts a result.
//!
//! ```text
//! max |found - reference| <= 2 max |naive - reference| + eps / 2 sqrt(16 T) max |reference|
//! ```
//!
//! over each tensor, where `reference` is the oracle's and `naive` the textbook computation in the storage type
//! (see [`super::naive`]), on the same inputs rounded to that type.
//!
//! **First term.** A kernel may order and fuse its operations differently from the textbook, so its error differs; but it
//! rounds no more often, so it may have twice the textbook's error.
//!
//! **Second term.** The naive error is itself a sample, and can be near zero by luck (short sequences, few channels) or by
//! construction (`f64`, where naive and oracle nearly agree). A correct result still differs from the reference by rounding:
//! from the inputs to a gradient a step rounds about 16 times (two elementary functions, two divisions, the products and sums),
//! each time by at most `eps / 2` of a number no larger than the scale of the tensor. With `|a| <= 1` no step amplifies the
//! errors of earlier ones, so after `T` steps they are a sum of `16 T` independent errors, which grows like `eps / 2 sqrt(16
//! T)`. `eps` is that of the storage type, to which every result is rounded.

use super::Outcome;
use crate::Element;
use crate::check::{Comparison, distance, largest};

/// Roundings of a step, see above.
const ROUNDINGS: f64 = 16.0;

/// Compares every tensor of `found`, for a problem of `steps` steps stored in `E`.
pub fn compare<E: Element>(
    steps: usize,
    found: &Outcome,
    naive: &Outcome,
    reference: &Outcome,
) -> Vec<Comparison> {
    let floor = E::EPSILON / 2.0 * (ROUNDINGS * steps.max(1) as f64).sqrt();
    let tensors = found
        .tensors()
        .into_iter()
        .zip(naive.tensors())
        .zip(reference.tensors());
    tensors
        .map(
            |(((tensor, found), (_, naive)), (_, reference))| Comparison {
                tensor,
                error: distance(found, reference),
                allowed: 2.0 * distance(naive, reference)
                    + floor * largest(reference.iter().map(|x| x.abs())),
            },
        )
        .collect()
}
