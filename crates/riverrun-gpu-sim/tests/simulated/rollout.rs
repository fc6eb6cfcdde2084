//! The rollout with a cluster of cubes for each member, against the oracle.

use riverrun_gpu_sim::simulated::client;
use riverrun_testkit::rollout::check::Case;
use riverrun_testkit::rollout::gpu::{Routine, choose};
use riverrun_testkit::rollout::{Decode, Problem};

fn check(case: &Case) {
    let client = client();
    let problem = case.problem;
    assert_eq!(choose(&client, &problem), Routine::Cluster);
    let found = case.gpu(&client, None).expect("a problem it can run");
    for comparison in case.compare(&found).expect("a problem the oracle takes") {
        assert!(comparison.passes(), "{problem:?}: {comparison:?}");
    }
    let again = case.gpu(&client, None).expect("ran once already");
    assert_eq!(found, again, "{problem:?}: two runs differ");
}

#[test]
fn every_size() {
    for (seed, problem) in [
        Problem::new(2, 256, 3).with_stochastic(256),
        Problem::new(3, 64, 10).with_features(16),
        // More cubes than run at once.
        Problem::new(20, 4, 5).with_features(2),
        // Planes without a unit, and with one.
        Problem::new(1, 37, 4).with_stochastic(7).with_features(1),
        Problem::new(2, 40, 5).with_decode(Decode::Linear),
        Problem::new(2, 1, 3).with_features(3),
        Problem::new(3, 12, 0),
        Problem::new(0, 12, 3),
        // Weights that do not stay in registers.
        Problem::new(1, 300, 2).with_stochastic(77),
        // Two groups of units a plane.
        Problem::new(1, 516, 1).with_features(1),
    ]
    .into_iter()
    .enumerate()
    {
        check(&Case::random(problem, seed as u64));
    }
}

/// Starts beyond which no fixed number stands for the largest logit.
#[test]
fn a_state_that_begins_far_from_zero() {
    let mut case = Case::random(Problem::new(2, 36, 4), 3);
    for (n, h) in case.arrays_mut()[4].iter_mut().enumerate() {
        *h *= if n < 36 { 3.9 } else { 40.0 };
    }
    check(&case);
}

#[test]
fn a_nan_stays_in_its_member() {
    let client = client();
    let mut case = Case::random(Problem::new(3, 24, 6), 9);
    let right = case.gpu(&client, None).expect("a problem it can run");
    case.arrays_mut()[4][24 + 3] = f32::NAN;
    let found = case.gpu(&client, None).expect("a problem it can run");
    for ((name, found), (_, right)) in found.named().into_iter().zip(right.named()) {
        let each = found.len() / 3;
        assert_eq!(found[..each], right[..each], "{name}");
        assert_eq!(found[2 * each..], right[2 * each..], "{name}");
    }
    assert!(found.entropy[1].is_nan());
    assert!(found.trajectory[8..14].iter().all(|x| x.is_nan()));
}
