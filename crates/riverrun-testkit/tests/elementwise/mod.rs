//! Operations element by element, against their oracles, and those against finite differences: activations at
//! their ends, the parts of an RSSM's step on the CPU and on a GPU.

mod rssm;

use riverrun_kernels::CpuElement;
use riverrun_testkit::activation::{Nonlinearity, cpu, oracle};

use crate::shared::assert_slopes;

/// Numbers in (-3, 3), some of them 0 and some far out.
fn data(n: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as f64 / u64::MAX as f64
    };
    (0..n)
        .map(|i| match i % 37 {
            5 => 0.0,
            11 => 40.0 * (next() - 0.5),
            _ => 6.0 * (next() - 0.5),
        })
        .collect()
}

fn rounded<E: CpuElement>(x: &[f64]) -> (Vec<E>, Vec<f64>) {
    let narrow: Vec<E> = x.iter().map(|&x| E::from_f64(x)).collect();
    let wide = narrow.iter().map(|x| x.to_f64()).collect();
    (narrow, wide)
}

/// `found` is `truth` within a rounding to storage and `slack` roundings of the arithmetic, of numbers as large as `size`.
fn assert_close<E: CpuElement>(what: &str, found: &[E], truth: &[f64], slack: f64, size: f64) {
    let acc = if E::NAME == "f64" {
        f64::EPSILON
    } else {
        f64::from(f32::EPSILON)
    };
    for (i, (found, truth)) in found.iter().zip(truth).enumerate() {
        let error = (found.to_f64() - truth).abs();
        // f16 has no steps finer than 2^-24.
        let tiny = if E::NAME == "f16" {
            2f64.powi(-25)
        } else {
            1e-38
        };
        let allowed = 0.5 * E::EPSILON * truth.abs() + slack * acc * (truth.abs() + size) + tiny;
        assert!(
            error <= allowed,
            "{what} {} {i}: {found:?}, not {truth}: {error:e} > {allowed:e}",
            E::NAME
        );
    }
}

#[test]
fn activations_are_exact_at_their_ends() {
    let x = [0.0f32, -0.0, 1e30, -1e30, f32::INFINITY, f32::NAN];
    let values = [0.0, 0.0, 1e30, 0.0, f32::INFINITY];
    for f in [Nonlinearity::Gelu, Nonlinearity::Silu] {
        let [mut y, mut d_x, mut d_factor] = [[7.0; 6]; 3];
        cpu::forward(f, &x, None, &mut y).unwrap();
        assert_eq!(y[..5], values, "{f:?}");
        let mut gated = [7.0; 6];
        cpu::forward(f, &x, Some(&[1.0; 6]), &mut gated).unwrap();
        assert_eq!(gated[..5], values, "{f:?}");
        cpu::backward(f, &x, None, &[1.0; 6], &mut d_x).unwrap();
        assert_eq!(d_x[..5], [0.5, 0.5, 1.0, 0.0, 1.0], "{f:?}");
        assert!(y[5].is_nan() && d_x[5].is_nan());
        let factor = (&[2.0; 6][..], &mut d_factor[..]);
        cpu::backward(f, &x, Some(factor), &[1.0; 6], &mut d_x).unwrap();
        assert_eq!(d_x[..5], [1.0, 1.0, 2.0, 0.0, 2.0], "{f:?}");
        assert_eq!(d_factor[..5], values, "{f:?}");
        assert!(d_x[5].is_nan() && d_factor[5].is_nan());
        assert!(cpu::forward(f, &x, None, &mut y[..5]).is_err());
        assert!(cpu::forward(f, &x, Some(&[1.0; 5]), &mut y).is_err());
        let short = (&[2.0; 6][..], &mut d_factor[..5]);
        assert!(cpu::backward(f, &x, Some(short), &[1.0; 6], &mut d_x).is_err());
    }
}

#[test]
fn the_oracle_has_the_slopes_of_its_function() {
    let (x, w) = (data(42, 6), data(42, 8));
    for f in [Nonlinearity::Gelu, Nonlinearity::Silu] {
        let value = |x: &[f64]| oracle::forward(f, x);
        assert_slopes(&x, &w, value, &oracle::backward(f, &x, &w));
    }
}
