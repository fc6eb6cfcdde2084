//! Assertions on results.

use riverrun_kernels::CpuElement;
use riverrun_testkit::recurrence::check::{Case, Outcome, compare, naive};

/// Asserts that the CPU kernels are right on a case whose numbers are of the type `E`.
#[track_caller]
pub fn assert_cpu_is_right<E: CpuElement>(case: &Case, what: &str) {
    let naive = naive::run::<E>(case);
    let steps = case.problem.shape.steps;
    for verdict in compare::<E>(steps, &case.cpu::<E>(), &naive, &case.oracle()) {
        assert!(verdict.passes(), "{what} in {}: {verdict:?}", E::NAME);
    }
}

/// Asserts that two outcomes are equal bit for bit, NaN included.
#[track_caller]
pub fn assert_same(found: &Outcome, expected: &Outcome) {
    for ((name, found), (_, expected)) in found.tensors().iter().zip(expected.tensors()) {
        assert_same_bits(name, found, expected);
    }
}

/// Asserts that two tensors are equal bit for bit, NaN included.
#[track_caller]
pub fn assert_same_bits(name: &str, found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{name}");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(
            found.to_bits(),
            expected.to_bits(),
            "{name}[{i}]: {found} and {expected}"
        );
    }
}
