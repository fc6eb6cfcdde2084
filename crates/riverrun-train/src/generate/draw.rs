//! Drawing a symbol from logits.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Sampling;
use crate::Error;

/// A symbol is unlikely whose probability is below `e^-NEAR` of the likeliest one's.
const NEAR: f64 = 10.0;

/// Draws an index; `uniform` is in [0, 1).
pub(super) fn draw(logits: &[f32], sampling: &Sampling, uniform: f64) -> Result<usize, Error> {
    if let Some((symbol, &value)) = logits
        .iter()
        .enumerate()
        .find(|(_, logit)| !logit.is_finite())
    {
        return Err(Error::Logits { symbol, value });
    }
    // The first of the largest.
    let larger = |top: usize, i: usize| if logits[i] > logits[top] { i } else { top };
    let top = (1..logits.len()).fold(0, larger);
    if sampling.temperature == 0.0 {
        return Ok(top);
    }
    let weight = |i: usize| {
        let apart = f64::from(logits[i]) - f64::from(logits[top]);
        (apart / sampling.temperature).exp()
    };
    // The largest first; equal logits keep their order, so the draw is the same everywhere. Not sorted, and the unlikely ones apart:
    // most draws take one of the first few.
    let near = logits[top] - (NEAR * sampling.temperature) as f32;
    let ranked = |likely: bool| -> BinaryHeap<_> {
        let some = logits
            .iter()
            .enumerate()
            .filter(|(_, logit)| (**logit > near) == likely);
        some.map(|(i, logit)| (ordered(*logit), Reverse(i)))
            .collect()
    };
    let (mut order, mut rest) = (ranked(true), true);
    let mut next = || {
        if order.is_empty() && rest {
            (order, rest) = (ranked(false), false);
        }
        order.pop().map(|(_, Reverse(i))| i)
    };
    let most = sampling.top_k.unwrap_or(usize::MAX);
    let (few, total) = if most < logits.len() {
        let few: Vec<usize> = (0..most).filter_map(|_| next()).collect();
        let total: f64 = few.iter().map(|&i| weight(i)).sum();
        (few, total)
    } else {
        (Vec::new(), (0..logits.len()).map(weight).sum())
    };
    let (mut left, mut drawn) = (uniform * total, top);
    // Rounding can leave a small remainder: then the last is drawn.
    for i in few.into_iter().chain(std::iter::from_fn(next)).take(most) {
        drawn = i;
        left -= weight(i);
        if left < 0.0 {
            break;
        }
    }
    Ok(drawn)
}

/// A number that is ordered as [`f32::total_cmp`] orders.
fn ordered(x: f32) -> i32 {
    let bits = x.to_bits() as i32;
    bits ^ (((bits >> 31) as u32) >> 1) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 4] = [0.0, 2.0, 1.0, 2.0];

    fn sampling(temperature: f64, top_k: Option<usize>) -> Sampling {
        Sampling {
            temperature,
            top_k,
            ..Default::default()
        }
    }

    #[test]
    fn temperature_zero_takes_the_first_of_the_highest() {
        assert_eq!(draw(&LOGITS, &sampling(0.0, None), 0.99).unwrap(), 1);
    }

    #[test]
    fn draws_follow_the_softmax() {
        let total: f64 = LOGITS.iter().map(|&l| f64::from(l).exp()).sum();
        let n = 10_000;
        let mut counts = [0; 4];
        for i in 0..n {
            counts[draw(&LOGITS, &sampling(1.0, None), (i as f64 + 0.5) / n as f64).unwrap()] += 1;
        }
        for (count, logit) in counts.iter().zip(LOGITS) {
            let expected = f64::from(logit).exp() / total * n as f64;
            assert!((f64::from(*count) - expected).abs() <= 1.0, "{counts:?}");
        }
    }

    #[test]
    fn top_k_leaves_the_rest_out() {
        for i in 0..100 {
            assert_ne!(
                draw(&LOGITS, &sampling(5.0, Some(3)), f64::from(i) / 100.0).unwrap(),
                0
            );
        }
    }

    #[test]
    fn draws_are_those_of_a_sorted_vocabulary() {
        let logits: Vec<f32> = (0..500)
            .map(|i| ((i * 37 % 101) as f32 - 50.0) / 20.0)
            .collect();
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        // With a low temperature most are unlikely.
        for (k, temperature) in [1, 7, 499, 500, 600]
            .into_iter()
            .flat_map(|k| [(k, 1.0), (k, 0.1)])
        {
            let among = &order[..k.min(logits.len())];
            let highest = f64::from(logits[order[0]]);
            let weight = |&i: &usize| ((f64::from(logits[i]) - highest) / temperature).exp();
            let total: f64 = among.iter().map(weight).sum();
            for n in 0..200 {
                // The last draws reach the unlikely ones.
                let uniform = 1.0 - 10f64.powf(-0.03 * f64::from(n));
                let mut left = uniform * total;
                let mut sorted = among.iter().take_while(|&i| {
                    left -= weight(i);
                    left >= 0.0
                });
                let before = sorted.by_ref().count();
                let found = draw(&logits, &sampling(temperature, Some(k)), uniform).unwrap();
                assert_eq!(found, among[before], "{k} {temperature} {uniform}");
            }
        }
    }

    #[test]
    fn logits_that_are_not_finite_are_refused() {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for temperature in [0.0, 1.0] {
                let error = draw(&[0.0, value], &sampling(temperature, None), 0.5).unwrap_err();
                assert!(matches!(error, Error::Logits { symbol: 1, .. }), "{error}");
            }
        }
    }
}
