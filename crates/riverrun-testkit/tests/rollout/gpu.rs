//! What the GPU kernels refuse, and what is no number; those for NVIDIA GPUs on one, or on a simulated one.

use riverrun_kernels::Error;
use riverrun_testkit::rollout::Problem;
use riverrun_testkit::rollout::check::Case;
use riverrun_testkit::rollout::gpu::{Routine, missing};

use crate::device::client;

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
