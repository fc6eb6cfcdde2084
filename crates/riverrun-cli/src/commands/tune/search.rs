//! The search for a tuning, from the rule's on, and when another takes its place.

use riverrun_kernels::recurrence::gpu::{Class, Registers, Tuning};

use crate::commands::bench::timing::Timing;
use crate::failure::Failure;

/// The part of the default's time below which a choice is kept.
const FASTER: f64 = 0.97;
/// Rounds of a search: each looks around the best tuning so far.
const ROUNDS: usize = 3;

/// Whether a choice takes the place of the default: it is more than 3 % faster, and a slow run of it is faster than a fast one of the
/// default. Unsteady timings say nothing.
pub fn faster(default: Timing, found: Timing) -> bool {
    found.median < FASTER * default.median
        && found.high < default.low
        && default.is_steady()
        && found.is_steady()
}

/// The fastest tuning found around `rule`. `time` gives seconds for each of a round's tunings, in order: `None` for one that is
/// not to be taken, and fewer where time is over.
pub fn search(
    class: Class,
    rule: Tuning,
    mut time: impl FnMut(&[Tuning]) -> Result<Vec<Option<f64>>, Failure>,
) -> Result<Tuning, Failure> {
    let (mut best, mut least) = (rule, f64::INFINITY);
    let (mut round, mut seen) = (vec![rule], Vec::new());
    for _ in 0..=ROUNDS {
        seen.extend(round.iter().copied());
        let before = best;
        for (tuning, seconds) in round.iter().zip(time(&round)?) {
            if let Some(seconds) = seconds.filter(|&seconds| seconds < least) {
                (best, least) = (*tuning, seconds);
            }
        }
        if seen.len() > 1 && best == before {
            break;
        }
        round = around(best, class);
        round.retain(|tuning| !seen.contains(tuning));
    }
    Ok(best)
}

/// The tunings that differ in one number, or in two whose product stays.
fn around(from: Tuning, class: Class) -> Vec<Tuning> {
    let with = |change: &dyn Fn(&mut Tuning)| {
        let mut tuning = from;
        change(&mut tuning);
        tuning.chunk = tuning.chunk.next_multiple_of(tuning.len.max(1));
        tuning
    };
    let mut all = vec![
        with(&|t| t.len *= 2),
        with(&|t| t.len /= 2),
        with(&|t| t.planes *= 2),
        with(&|t| t.planes /= 2),
        with(&|t| t.vector *= 2),
        with(&|t| t.vector /= 2),
        with(&|t| (t.planes, t.len) = (t.planes * 2, t.len / 2)),
        with(&|t| (t.planes, t.len) = (t.planes / 2, t.len * 2)),
        with(&|t| (t.vector, t.len) = (t.vector * 2, t.len / 2)),
        with(&|t| (t.vector, t.len) = (t.vector / 2, t.len * 2)),
        with(&|t| t.lookback += 1),
        with(&|t| t.lookback = t.lookback.saturating_sub(1)),
    ];
    if !class.backward {
        all.push(with(&|t| {
            t.registers = match t.registers {
                Registers::Inputs => Registers::Coefficients,
                Registers::Coefficients => Registers::Inputs,
            }
        }));
    }
    // Wider vectors than the layout has are those of the layout.
    let widest = class.problem().shape.dim;
    all.retain(|t| *t != from && t.fits(class) && widest.is_multiple_of(t.vector));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(low: f64, median: f64, high: f64) -> Timing {
        Timing {
            low,
            median,
            high,
            samples: 7,
        }
    }

    #[test]
    fn a_choice_is_kept_beyond_three_percent_and_both_spreads() {
        let default = timing(0.99, 1.0, 1.01);
        assert!(faster(default, timing(0.94, 0.95, 0.96)));
        assert!(!faster(default, timing(0.97, 0.975, 0.98)));
        assert!(!faster(default, timing(0.94, 0.95, 0.995)));
        assert!(!faster(timing(0.95, 1.0, 1.01), timing(0.94, 0.95, 0.96)));
        assert!(!faster(default, timing(0.1, 0.5, 0.6)));
    }

    #[test]
    fn a_search_walks_to_the_fastest_and_stops_where_time_is_over() {
        let class: Class = "raw f32 forward 512".parse().unwrap();
        let [rule, fastest]: [Tuning; 2] = ["1:64:4:2:1", "2:32:8:2:1"].map(|t| t.parse().unwrap());
        let mut asked = 0;
        let mut found = |most: usize| {
            search(class, rule, |round| {
                asked += round.len();
                assert!(round.iter().all(|tuning| tuning.fits(class)));
                let far = |a: usize, b: usize| (a as f64 / b as f64).log2().abs();
                let seconds = |t: &Tuning| {
                    let sizes = far(t.vector, 2) + far(t.len, 32) + far(t.planes, 8);
                    sizes
                        + t.lookback.abs_diff(2) as f64
                        + if t.registers == Registers::Inputs {
                            0.0
                        } else {
                            1.0
                        }
                };
                Ok(round.iter().map(|t| Some(seconds(t))).take(most).collect())
            })
        };
        assert_eq!(found(usize::MAX).unwrap().to_string(), fastest.to_string());
        assert_eq!(found(0).unwrap(), rule);
        assert!(asked < 60, "{asked}");
    }
}
