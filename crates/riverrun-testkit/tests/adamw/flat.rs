//! Many tensors as one vector.

use proptest::prelude::*;
use riverrun_kernels::Error;
use riverrun_kernels::flat::{DIRECTIONS, Place, cpu};
use riverrun_testkit::flat::Flat;

use crate::shared::assert_cpu_is_right;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn cpu_is_right_at_any_size(
        sizes in prop::collection::vec(0usize..300, 1..5),
        directions in 1usize..=DIRECTIONS,
        seed: u64,
    ) {
        assert_cpu_is_right::<f32>(&Flat::random(&sizes, directions, seed));
    }
}

#[test]
fn wrong_lengths_are_refused_and_nothing_changes() {
    let place = Place {
        start: 2,
        len: 3,
        group: 1,
    };
    let mut p = [1.0, 2.0, 3.0];
    let length = |what, expected, found| {
        Err(Error::Length {
            what,
            expected,
            found,
        })
    };
    let (short, long) = ([5.0; 4], [5.0; 5]);
    assert_eq!(
        cpu::add(place, &mut p, &[&short], &[1.0; 2]),
        length("a direction", 5, 4)
    );
    assert_eq!(
        cpu::add(place, &mut p, &[&long], &[1.0]),
        length("coefficients", 2, 1)
    );
    assert_eq!(
        cpu::add(place, &mut p, &[&long[..]; DIRECTIONS + 1], &[1.0; 10]),
        length("directions, at most", DIRECTIONS, DIRECTIONS + 1)
    );
    assert_eq!(
        cpu::add(place, &mut p[..2], &[&long], &[1.0; 2]),
        length("a tensor", 3, 2)
    );
    assert_eq!(cpu::put(place, &mut p, &short), length("a vector", 5, 4));
    assert_eq!(
        cpu::take(place, &p, &mut short.clone()),
        length("a vector", 5, 4)
    );
    assert_eq!(p, [1.0, 2.0, 3.0]);
    cpu::add(place, &mut p, &[&long], &[9.0, 2.0]).expect("lengths that fit");
    assert_eq!(p, [11.0, 12.0, 13.0]);
}

#[cfg(feature = "gpu")]
mod on_gpu {
    use riverrun_kernels::flat::gpu::{Buffer, add, put, take};
    use riverrun_kernels::gpu::Dtype;
    use riverrun_testkit::{Case, judge};

    use super::*;
    use crate::device::client;

    #[test]
    fn whole_vectors_and_none_are_right() {
        let Some(client) = client() else { return };
        for sizes in [&[256usize; 16][..], &[0, 0][..]] {
            let case = Flat::random(sizes, 2, 5);
            let run = || case.gpu(&client, Dtype::F32);
            let verdict = judge::<f32, _>(&case, run).expect("a problem it can run");
            assert!(verdict.passes(), "{verdict:?}");
        }
    }

    #[test]
    fn wrong_lengths_are_refused() {
        let Some(client) = client() else { return };
        let buffer =
            |n: usize| riverrun_testkit::transfer::upload(&client, Dtype::F32, &vec![1.0; n]);
        let tensor = |start, group| Buffer {
            place: Place {
                start,
                len: 3,
                group,
            },
            p: buffer(3),
        };
        let refused = |result: Result<(), Error>| matches!(result, Err(Error::Length { .. }));
        let (vector, two) = (buffer(5), buffer(2));
        let far = [tensor(3, 0)];
        assert!(refused(put(&client, Dtype::F32, &far, &vector, 5)));
        assert!(refused(take(&client, Dtype::F32, &far, &vector, 5)));
        let near = [tensor(2, 2)];
        let vectors = [vector];
        assert!(refused(put(&client, Dtype::F32, &near, &vectors[0], 6)));
        assert!(refused(add(&client, &near, &vectors, 5, &two, 2)));
        assert!(refused(add(&client, &near, &vectors, 5, &two, 3)));
    }
}
