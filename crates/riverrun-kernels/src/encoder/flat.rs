//! States of many runs as arrays, for a GPU or a file.

use super::features::{Series, features};
use super::ring::statistics;
use super::scalars::{
    GRADIENT_AVERAGES, GRADIENT_COUNT, LOSS_AVERAGES, LOSS_COUNT, REST, SCALARS, Scalars,
};
use super::{FEATURES, StateEncoder, WINDOW};
use crate::Error;

/// States of `N` runs: histories with the oldest value first and zeros after the newest.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct FlatStates {
    /// Losses of a ring, `L`.
    pub losses_each: usize,
    /// Gradient norms of a ring, `G`.
    pub gradients_each: usize,
    /// `[N, L]`.
    pub losses: Vec<f32>,
    /// `[N, G]`.
    pub gradients: Vec<f32>,
    /// `[N, 24]`: the numbers of losses and gradient norms, the moving averages of both, and the other values.
    pub scalars: Vec<f32>,
}

impl FlatStates {
    /// The states of encoders with rings of the same sizes.
    ///
    /// # Errors
    /// [`Error::Encoder`] where sizes differ.
    pub fn new<'a>(encoders: impl IntoIterator<Item = &'a StateEncoder>) -> Result<Self, Error> {
        let mut flat = Self::default();
        for encoder in encoders {
            let (losses, gradients) = (encoder.config().losses, encoder.config().gradients);
            if flat.scalars.is_empty() {
                (flat.losses_each, flat.gradients_each) = (losses, gradients);
            }
            if (flat.losses_each, flat.gradients_each) != (losses, gradients) {
                return Err(Error::Encoder {
                    reason: format!(
                        "rings of {losses} and {gradients} beside rings of {} and {}",
                        flat.losses_each, flat.gradients_each
                    ),
                });
            }
            let put = |to: &mut Vec<f32>, values: &mut dyn Iterator<Item = f64>, each: usize| {
                let end = to.len() + each;
                to.extend(values.map(|x| x as f32));
                to.resize(end, 0.0);
            };
            put(&mut flat.losses, &mut encoder.losses().iter(), losses);
            put(
                &mut flat.gradients,
                &mut encoder.gradients().iter(),
                gradients,
            );
            let counts = [encoder.losses().len(), encoder.gradients().len()].map(|n| n as f64);
            let [l, g] = encoder.averages();
            let scalars = encoder.scalars().array();
            let all = counts.into_iter().chain(l).chain(g).chain(scalars);
            flat.scalars.extend(all.map(|x| x as f32));
        }
        Ok(flat)
    }

    /// Runs, `N`.
    pub fn runs(&self) -> usize {
        self.scalars.len() / SCALARS
    }
}

/// The features of every run, `[N, 64]`, on the CPU.
///
/// # Errors
/// [`Error::Encoder`] for rings under 32, [`Error::Length`] where `losses` `[N, L]`, `gradients` `[N, G]` and `scalars` `[N, 24]`
/// do not fit together.
pub fn encode_flat(
    [losses_each, gradients_each]: [usize; 2],
    losses: &[f32],
    gradients: &[f32],
    scalars: &[f32],
) -> Result<Vec<f32>, Error> {
    check_flat(
        [losses_each, gradients_each],
        losses.len(),
        gradients.len(),
        scalars.len(),
    )?;
    let runs = scalars.len() / SCALARS;
    let wide = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
    let mut all = Vec::with_capacity(runs * FEATURES);
    for n in 0..runs {
        let scalars = &scalars[n * SCALARS..(n + 1) * SCALARS];
        let count = |at: usize, most: usize| (scalars[at].max(0.0) as usize).min(most);
        let l = wide(&losses[n * losses_each..][..count(LOSS_COUNT, losses_each)]);
        let g = wide(&gradients[n * gradients_each..][..count(GRADIENT_COUNT, gradients_each)]);
        let averages = |at: usize| std::array::from_fn(|k| f64::from(scalars[at + k]));
        let series = |x: &'_ [f64], averages| Series {
            statistics: statistics(x),
            now: x.last().copied().unwrap_or(0.0),
            count: x.len(),
            last: None,
            averages,
        };
        let (last_l, last_g) = (l.last_chunk::<WINDOW>(), g.last_chunk::<WINDOW>());
        let mut l = series(&l, averages(LOSS_AVERAGES));
        let mut g = series(&g, averages(GRADIENT_AVERAGES));
        (l.last, g.last) = (last_l, last_g);
        all.extend(features(
            &l,
            &g,
            None,
            &Scalars::from_array(&scalars[REST..]),
        ));
    }
    Ok(all)
}

/// Checks lengths.
pub(super) fn check_flat(
    each: [usize; 2],
    losses: usize,
    gradients: usize,
    scalars: usize,
) -> Result<(), Error> {
    if each.iter().any(|each| *each < WINDOW) {
        return Err(Error::Encoder {
            reason: format!("rings of {} and {}, expected 32 or more", each[0], each[1]),
        });
    }
    let runs = scalars / SCALARS;
    for (what, expected, found) in [
        ("scalars", runs * SCALARS, scalars),
        ("losses", runs * each[0], losses),
        ("gradients", runs * each[1], gradients),
    ] {
        if expected != found {
            return Err(Error::Length {
                what,
                expected,
                found,
            });
        }
    }
    Ok(())
}
