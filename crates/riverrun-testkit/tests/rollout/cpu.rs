//! The CPU kernel against the oracle.

use proptest::prelude::*;
use riverrun_kernels::cell::cpu::Level;
use riverrun_testkit::rollout::check::Case;
use riverrun_testkit::rollout::{Arguments, Decode, Outcome, Problem, cpu};

use crate::shared::assert_cpu_is_right;

#[test]
fn the_sizes_that_are_asked_for() {
    for steps in [0, 1, 10, 25, 50, 75, 100] {
        for stochastic in [32, 256] {
            let problem = Problem::new(5, 256, steps).with_stochastic(stochastic);
            assert_cpu_is_right::<f32>(&Case::random(problem, steps as u64));
        }
    }
    assert_cpu_is_right::<f32>(&Case::random(Problem::new(3, 64, 10).with_features(16), 1));
    assert_cpu_is_right::<f32>(&Case::random(Problem::new(2, 4, 100).with_features(2), 2));
    assert_cpu_is_right::<f32>(&Case::random(
        Problem::new(1, 1024, 3).with_stochastic(1024),
        3,
    ));
    assert_cpu_is_right::<f32>(&Case::random(Problem::new(1, 1100, 2), 4));
    assert_cpu_is_right::<f32>(&Case::random(Problem::new(70, 33, 4), 5));
}

#[test]
fn errors_stay_below_a_ten_thousandth() {
    for seed in 0..4 {
        let case = Case::random(Problem::new(5, 256, 100).with_stochastic(256), seed);
        let (found, reference) = (case.cpu().unwrap(), case.oracle().unwrap());
        for ((name, found), (_, reference)) in found.named().into_iter().zip(reference.named()) {
            for (found, reference) in found.iter().zip(reference) {
                let error = (f64::from(*found) - reference).abs();
                assert!(error <= 1e-4 * reference.abs().max(1.0), "{name}: {error}");
            }
        }
    }
}

/// Weights that start within a cache line are copied; that changes no bit.
#[test]
fn the_place_of_the_weights_in_memory_does_not_matter() {
    for steps in [3, 20] {
        let case = Case::random(Problem::new(3, 64, steps), 4);
        let expected = case.cpu().unwrap();
        let arguments = case.arguments();
        for start in [0, 1, 4, 15] {
            let mut moved = vec![0.0; start];
            moved.extend_from_slice(arguments.u);
            let arguments = Arguments {
                u: &moved[start..],
                ..arguments
            };
            let found = cpu::run(&case.problem, arguments).unwrap();
            assert_eq!(found, expected, "{steps} steps, {start} numbers on");
        }
    }
}

#[test]
fn nothing_to_do() {
    let found = Case::random(Problem::new(0, 8, 3), 0).cpu().unwrap();
    assert!(found.named().iter().all(|(_, x)| x.is_empty()));
    let found = Case::random(Problem::new(2, 8, 0), 0).cpu().unwrap();
    assert_eq!(found.trajectory, [2.0, 2.0]);
    assert_eq!(found.entropy, [0.0, 0.0]);
    assert!(found.norm.is_empty());
}

#[test]
fn a_nan_stays_in_its_member() {
    let mut case = Case::random(Problem::new(3, 24, 6), 9);
    let right = case.cpu().unwrap();
    case.arrays_mut()[4][24 + 3] = f32::NAN;
    let found = case.cpu().unwrap();
    for ((name, found), (_, right)) in found.named().into_iter().zip(right.named()) {
        let each = found.len() / 3;
        assert_eq!(found[..each], right[..each], "{name}");
        assert_eq!(found[2 * each..], right[2 * each..], "{name}");
        assert!(found[each..2 * each].iter().skip(1).all(|x| x.is_nan()) || each == 1);
    }
    assert!(found.entropy[1].is_nan());
    assert!(found.trajectory[8..14].iter().all(|x| x.is_nan()));
}

#[test]
fn members_that_differ_disagree() {
    let case = Case::random(Problem::new(5, 256, 50).with_stochastic(256), 1);
    let found = case.cpu().unwrap();
    let summary = found.summary(&case.problem).unwrap();
    assert!(summary.variance.sqrt() > 1e-6);
    for metrics in found.metrics(&case.problem) {
        // After the first step, which comes from the given loss.
        assert!(metrics.step_deltas[1..].iter().all(|delta| *delta < 0.5));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_size_is_right(
        members in 0_usize..5,
        hidden in 1_usize..70,
        stochastic in 1_usize..70,
        features in 1_usize..20,
        steps in 0_usize..8,
        linear: bool,
        seed: u64,
    ) {
        let mut problem = Problem::new(members, hidden, steps)
            .with_stochastic(stochastic.min(hidden))
            .with_features(features);
        if linear {
            problem = problem.with_decode(Decode::Linear);
        }
        assert_cpu_is_right::<f32>(&Case::random(problem, seed));
    }
}

fn bits(found: &Outcome<f32>) -> Vec<u32> {
    let arrays = found.named().into_iter().flat_map(|(_, x)| x.to_vec());
    arrays.map(f32::to_bits).collect()
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    for members in [1, 2, 3, 5] {
        let case = Case::random(Problem::new(members, 128, 60).with_stochastic(17), 3);
        let with = |threads| {
            bits(
                &cpu::run_with(
                    &case.problem,
                    case.arguments(),
                    Level::available()[0],
                    threads,
                )
                .unwrap(),
            )
        };
        let one = with(1);
        for threads in 2..8 {
            assert_eq!(one, with(threads), "{members} members, {threads} threads");
        }
    }
}

#[test]
fn every_level_of_the_machine_passes() {
    for level in Level::available() {
        for hidden in [1, 7, 33, 64] {
            let case = Case::random(Problem::new(2, hidden, 5).with_features(9), 1);
            let found = cpu::run_with(&case.problem, case.arguments(), *level, 1).unwrap();
            for comparison in case.compare(&found).unwrap() {
                assert!(comparison.passes(), "{level:?} H {hidden}: {comparison:?}");
            }
        }
    }
}
