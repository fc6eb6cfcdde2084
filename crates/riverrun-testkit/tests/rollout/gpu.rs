//! The GPU kernels against the oracle; those for NVIDIA GPUs on one, or on a simulated one.

use riverrun_kernels::Error;
use riverrun_testkit::judge;
use riverrun_testkit::rollout::check::Case;
use riverrun_testkit::rollout::gpu::{Routine, missing};
use riverrun_testkit::rollout::{Decode, Problem};

use crate::device::client;

/// Smaller than those of the table, for software GPUs.
fn problems() -> Vec<Problem> {
    vec![
        Problem::new(5, 256, 4).with_stochastic(256),
        Problem::new(3, 64, 10).with_features(16),
        Problem::new(2, 4, 20).with_features(2),
        Problem::new(1, 300, 3).with_stochastic(77).with_features(1),
        Problem::new(9, 40, 5).with_decode(Decode::Linear),
        Problem::new(1, 1024, 2),
        Problem::new(2, 33, 3).with_stochastic(7),
        Problem::new(2, 1, 3).with_features(3),
        Problem::new(3, 12, 0),
        Problem::new(0, 12, 3),
    ]
}

#[test]
fn every_routine_is_right() {
    let Some(client) = client() else { return };
    for (seed, problem) in problems().into_iter().enumerate() {
        let case = Case::random(problem, seed as u64);
        for routine in Routine::ALL {
            if let Some(reason) = missing(&client, &problem, routine) {
                println!("skipped: {} of {problem:?}: {reason}", routine.name());
                continue;
            }
            let run = || Ok::<_, Error>(case.tensors(&case.gpu(&client, Some(routine))?));
            let verdict = judge::<f32, _>(&case, run).unwrap();
            assert!(verdict.passes(), "{routine:?} {problem:?}: {verdict:?}");
        }
    }
}

#[test]
fn a_nan_stays_in_its_member() {
    let Some(client) = client() else { return };
    let mut case = Case::random(Problem::new(3, 24, 6), 9);
    for routine in Routine::ALL {
        if missing(&client, &case.problem, routine).is_some() {
            continue;
        }
        case.arrays_mut()[4][24 + 3] = 0.5;
        let right = case.gpu(&client, Some(routine)).unwrap();
        case.arrays_mut()[4][24 + 3] = f32::NAN;
        let found = case.gpu(&client, Some(routine)).unwrap();
        for ((name, found), (_, right)) in found.named().into_iter().zip(right.named()) {
            let each = found.len() / 3;
            assert_eq!(found[..each], right[..each], "{name}");
            assert_eq!(found[2 * each..], right[2 * each..], "{name}");
        }
        assert!(found.entropy[1].is_nan(), "{routine:?}");
        assert!(found.trajectory[8..14].iter().all(|x| x.is_nan()));
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let Some(client) = client() else { return };
    let refused = Case::random(Problem::new(1, 1028, 1).with_features(1), 0).gpu(&client, None);
    assert!(matches!(refused, Err(Error::Routine { .. })), "{refused:?}");
    let mut case = Case::random(Problem::new(2, 8, 3), 0);
    case.arrays_mut()[1].pop();
    let refused = case.gpu(&client, None);
    assert!(
        matches!(refused, Err(Error::Length { what: "u", .. })),
        "{refused:?}"
    );
}
