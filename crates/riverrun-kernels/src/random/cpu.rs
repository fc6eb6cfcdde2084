//! The CPU form.

use super::{GOLDEN, KEY, MULTIPLIERS};
use crate::threads::pieces::{InPieces, Pieces};

fn mix(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(MULTIPLIERS[0]);
    x ^= x >> 15;
    x = x.wrapping_mul(MULTIPLIERS[1]);
    x ^ x >> 16
}

/// Fills `out` with numbers in (0, 1).
///
/// # Panics
/// If there are more than `2^32`.
pub fn uniform(key: [u32; KEY], stream: u32, out: &mut [f32]) {
    const CHUNK: usize = 1 << 14;
    assert!(out.len() <= 1 << 32, "a stream has 2^32 numbers");
    let s = key.iter().rev().fold(stream, |x, word| mix(x) ^ word);
    let s = mix(s);
    let t = mix(s ^ GOLDEN);
    let fill = |(chunk, out): (usize, &mut [f32])| {
        for (i, u) in out.iter_mut().enumerate() {
            let i = (chunk * CHUNK + i) as u32;
            let bits = mix(mix(i.wrapping_add(s)) ^ t);
            *u = ((bits >> 9) as f32 + 0.5) * 2.0_f32.powi(-23);
        }
    };
    if out.len() <= CHUNK {
        fill((0, out));
    } else {
        out.par_chunks_mut(CHUNK).enumerate().for_each(fill);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(key: [u32; KEY], stream: u32, n: usize) -> Vec<f32> {
        let mut out = vec![f32::NAN; n];
        uniform(key, stream, &mut out);
        out
    }

    #[test]
    fn any_part_of_a_stream_is_the_same() {
        let all = numbers([1, 2, 3, 4], 5, 100_000);
        assert_eq!(all[..1000], numbers([1, 2, 3, 4], 5, 1000));
        assert!(all.iter().all(|u| *u > 0.0 && *u < 1.0));
    }

    #[test]
    fn every_word_of_the_key_and_the_stream_counts() {
        let first = |key, stream| numbers(key, stream, 4);
        let base = first([0; 4], 0);
        assert_ne!(base, first([0; 4], 1));
        for word in 0..KEY {
            let mut key = [0; KEY];
            key[word] = 1;
            assert_ne!(base, first(key, 0));
        }
    }

    #[test]
    fn numbers_are_uniform_and_unrelated() {
        let n = 1 << 20;
        for seed in 0..4 {
            let u = numbers([seed, 0, 0, 0], 0, n);
            let mean = u.iter().map(|u| f64::from(*u)).sum::<f64>() / n as f64;
            // Five deviations.
            assert!((mean - 0.5).abs() < 5.0 * (1.0 / 12.0_f64 / n as f64).sqrt());
            let mut counts = [0_u32; 256];
            u.iter().for_each(|u| counts[(u * 256.0) as usize] += 1);
            let expected = n as f64 / 256.0;
            let square: f64 = counts
                .iter()
                .map(|c| (f64::from(*c) - expected).powi(2) / expected)
                .sum();
            // 255 degrees of freedom: mean 255, deviation 22.6.
            assert!(square < 255.0 + 5.0 * 22.6, "{square}");
            for lag in [1, 2, 64] {
                let product: f64 = u
                    .iter()
                    .zip(&u[lag..])
                    .map(|(a, b)| (f64::from(*a) - 0.5) * (f64::from(*b) - 0.5))
                    .sum();
                let correlation = 12.0 * product / n as f64;
                assert!(correlation.abs() < 5.0 / (n as f64).sqrt(), "{correlation}");
            }
        }
    }
}
