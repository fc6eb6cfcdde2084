//! On CPUs: a row, in `f64`.

use super::Rule;

/// Draws a symbol of a row of logits, which is not empty.
///
/// # Errors
/// The first symbol whose logit is not finite.
pub fn draw(logits: &[f32], rule: &Rule, uniform: f64) -> Result<usize, usize> {
    if let Some(symbol) = logits.iter().position(|logit| !logit.is_finite()) {
        return Err(symbol);
    }
    // The first of the largest.
    let larger = |top: usize, i: usize| if logits[i] > logits[top] { i } else { top };
    let top = (1..logits.len()).fold(0, larger);
    if rule.temperature == 0.0 {
        return Ok(top);
    }
    let least = match rule.top_k {
        Some(k) if k < logits.len() => {
            let mut order = logits.to_vec();
            *order
                .select_nth_unstable_by(k.max(1) - 1, |a, b| b.total_cmp(a))
                .1
        }
        _ => f32::NEG_INFINITY,
    };
    let (highest, scale) = (f64::from(logits[top]), 1.0 / rule.temperature);
    let weight = |logit: f32| match logit >= least {
        true => ((f64::from(logit) - highest) * scale).exp(),
        false => 0.0,
    };
    let total: f64 = logits.iter().map(|&logit| weight(logit)).sum();
    let (mut left, mut drawn) = (uniform * total, top);
    for (i, &logit) in logits.iter().enumerate() {
        let weight = weight(logit);
        if weight > 0.0 {
            // Rounding can leave a small remainder: then the last is drawn.
            drawn = i;
            left -= weight;
            if left < 0.0 {
                break;
            }
        }
    }
    Ok(drawn)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 4] = [0.0, 2.0, 1.0, 2.0];

    fn rule(temperature: f64, top_k: Option<usize>) -> Rule {
        Rule { temperature, top_k }
    }

    #[test]
    fn temperature_zero_takes_the_first_of_the_highest() {
        assert_eq!(draw(&LOGITS, &rule(0.0, None), 0.99), Ok(1));
    }

    #[test]
    fn draws_follow_the_softmax() {
        let total: f64 = LOGITS.iter().map(|&l| f64::from(l).exp()).sum();
        let n = 10_000;
        let mut counts = [0; 4];
        for i in 0..n {
            let uniform = (f64::from(i) + 0.5) / f64::from(n);
            counts[draw(&LOGITS, &rule(1.0, None), uniform).unwrap()] += 1;
        }
        for (count, logit) in counts.iter().zip(LOGITS) {
            let expected = f64::from(logit).exp() / total * f64::from(n);
            assert!((f64::from(*count) - expected).abs() <= 1.0, "{counts:?}");
        }
    }

    #[test]
    fn top_k_leaves_out_what_is_smaller_than_the_kth_and_keeps_its_equals() {
        let drawn = |k| {
            let mut drawn: Vec<usize> = (0..100)
                .map(|i| draw(&LOGITS, &rule(5.0, Some(k)), f64::from(i) / 100.0).unwrap())
                .collect();
            drawn.dedup();
            drawn
        };
        assert_eq!(drawn(1), [1, 3]);
        assert_eq!(drawn(2), [1, 3]);
        assert_eq!(drawn(3), [1, 2, 3]);
        assert_eq!(drawn(4), [0, 1, 2, 3]);
    }

    #[test]
    fn a_weight_of_zero_is_never_drawn() {
        let logits = [0.0, -1e30, 0.0, -1e30];
        for (uniform, symbol) in [(0.0, 0), (0.499, 0), (0.5, 2), (1.0, 2)] {
            assert_eq!(draw(&logits, &rule(1.0, None), uniform), Ok(symbol));
        }
    }

    #[test]
    fn logits_that_are_not_finite_are_refused() {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for temperature in [0.0, 1.0] {
                assert_eq!(draw(&[0.0, value], &rule(temperature, None), 0.5), Err(1));
            }
        }
    }
}
