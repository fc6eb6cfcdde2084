//! Assertions that several operations share.

use riverrun_testkit::{Case, CpuElement, judge};

/// The CPU kernels are right on a problem, rounded to `E`.
pub fn assert_cpu_is_right<E: CpuElement>(case: &(impl Case + std::fmt::Debug)) {
    let case = case.clone().rounded::<E>();
    let verdict = judge::<E, _>(&case, || case.cpu::<E>()).expect("a problem it can run");
    assert!(verdict.passes(), "{} {verdict:?}: {case:?}", E::NAME);
}

/// `Σ w f(x)` has the slopes that the backward oracle gives.
pub fn assert_slopes(x: &[f64], w: &[f64], f: impl Fn(&[f64]) -> Vec<f64>, slopes: &[f64]) {
    let loss = |x: &[f64]| -> f64 { f(x).iter().zip(w).map(|(y, w)| y * w).sum() };
    for i in 0..x.len() {
        let (mut up, mut down) = (x.to_vec(), x.to_vec());
        (up[i], down[i]) = (x[i] + 1e-5, x[i] - 1e-5);
        let slope = (loss(&up) - loss(&down)) / 2e-5;
        assert!(
            (slope - slopes[i]).abs() < 1e-6 * (1.0 + slope.abs()),
            "{i}: {slope} {}",
            slopes[i]
        );
    }
}
