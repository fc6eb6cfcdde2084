//! The rule that accepts a result of the cells.
//!
//! ```text
//! max |found - reference| <= 2 max |naive - reference| + floor · max |reference|
//! ```
//!
//! over each tensor, where `naive` is the textbook computation in `f32` with stored values rounded to the storage type. As in
//! [`crate::recurrence::check`], a fast form may order its operations otherwise but rounds no more often, so it is held to
//! twice the textbook's error; the floor is the sum of independent roundings, for cases where the textbook is accurate by luck.
//!
//! **Floor.** The products are sums of `H` terms (of a head's `H/N`) in `f32`, over `T` steps: `ε √(T H)`. Storage in 16 bits
//! rounds about 16 times a step, each time by at most half its own `ε`: `ε/2 √(16 T)`. A sum over steps and sequences has `B`
//! times as many terms, and its scale is that of its largest summand, if larger: cancelling summands leave their roundings.

use super::heads::by_head;
use super::{Case, Results, naive};
use crate::check::{Comparison, distance, largest};
use crate::{Element, Error};

fn scale(values: &[f64]) -> f64 {
    largest(values.iter().map(|x| x.abs()))
}

/// Compares every tensor of `found`, results of the case in the storage type `E`.
///
/// # Errors
/// The errors of the oracle.
pub fn compare<E: Element>(case: &Case<E>, found: &Results<E>) -> Result<Vec<Comparison>, Error> {
    let reference = case.to::<f64>().oracle()?.named();
    let naive = by_head(&case.to::<f32>(), |case| Ok(naive::run::<E>(case)))?.named();
    let p = case.problem;
    let floor = |rows: usize| {
        let rows = rows.max(1) as f64;
        let sums = f64::from(f32::EPSILON) * (rows * p.depth() as f64).sqrt();
        let storage = match E::EPSILON > f64::from(f32::EPSILON) {
            true => E::EPSILON / 2.0 * (16.0 * rows).sqrt(),
            false => 0.0,
        };
        sums + storage
    };
    let (along, across) = (floor(p.steps), floor(p.batch * p.steps));
    let of = |wanted: &str| {
        let tensor = reference.iter().find(|(name, _)| *name == wanted);
        tensor.map_or(0.0, |(_, values)| scale(values))
    };
    let given = |values: &Option<Vec<E>>| {
        let values = values.iter().flatten();
        largest(values.map(|x| x.to_f64().abs()))
    };
    let summands = of("d_xg");
    let arriving = [&case.d_h, &case.d_h_last, &case.d_c_last].map(given);
    let arriving = largest(arriving.into_iter());
    let states = largest([of("h"), given(&case.h0)].into_iter());
    let tensors = found.named().into_iter().zip(naive).zip(reference);
    Ok(tensors
        .map(|(((name, found), (_, naive)), (_, reference))| {
            let own = scale(&reference);
            let floor = match name {
                "d_u" | "d_bias" => across * own.max(summands),
                "d_h0" | "d_c0" => along * own.max(summands).max(arriving),
                "h" | "h_last" => along * own.max(states),
                "c_last" => along * own.max(given(&case.c0)),
                _ => along * own,
            };
            Comparison {
                tensor: name.into(),
                error: distance(&found, &reference),
                allowed: 2.0 * distance(&naive, &reference) + floor,
            }
        })
        .collect())
}
