//! AdamW, the sum of squares, and sums of vectors added to tensors, on the CPU and on a GPU (a software one too), against the
//! oracle.

mod flat;

use half::{bf16, f16};
use proptest::prelude::*;
use riverrun_kernels::adamw::check::{Case, Outcome};
use riverrun_kernels::adamw::clip::{EPSILON, PATIENCE, Scale, clip};
use riverrun_kernels::adamw::{Step, cpu};
use riverrun_kernels::{Element, Error};

fn assert_right<E: Element>(case: &Case, mut run: impl FnMut() -> Result<Outcome, Error>) {
    let what = E::NAME;
    let truth = case.oracle();
    let found = run().expect("a problem it can run");
    for verdict in case.compare::<E>(&found, &truth) {
        assert!(verdict.passes(), "{what}: {verdict:?}");
    }
    let again = run().expect("a problem it can run");
    assert!(found.same_bits(&again), "{what} differs from run to run");
}

fn on_cpu<E: Element<Acc = f32>>(case: &Case) {
    let case = case.rounded::<E>();
    assert_right::<E>(&case, || case.cpu::<E>());
}

const SIZES: [usize; 9] = [0, 1, 3, 64, 100, 4096, 5001, 40_000, 7];

#[test]
fn cpu_is_right_in_every_type_of_gradients() {
    let case = Case::random(&SIZES, 3);
    on_cpu::<f32>(&case);
    on_cpu::<f16>(&case);
    on_cpu::<bf16>(&case);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn cpu_is_right_at_any_size(sizes in prop::collection::vec(0usize..300, 1..5), seed: u64) {
        on_cpu::<f32>(&Case::random(&sizes, seed));
    }
}

#[test]
fn wrong_lengths_are_refused() {
    let step = Step {
        lr: 0.1,
        beta_1: 0.9,
        beta_2: 0.99,
        epsilon: 1e-8,
        weight_decay: 0.0,
        time: 1,
    };
    let (mut p, mut m, mut v) = ([0.0; 3], [0.0; 3], [0.0; 2]);
    assert_eq!(
        cpu::update(
            &step.numbers(),
            true,
            1.0,
            &mut p,
            &[0.0f32; 3],
            &mut m,
            &mut v,
            None
        ),
        Err(Error::Length {
            what: "v",
            expected: 3,
            found: 2
        })
    );
}

#[test]
fn a_norm_is_clipped_and_a_scale_adapts() {
    assert_eq!(clip(4.0, 1.0, None), 1.0 / (2.0 + EPSILON));
    assert_eq!(clip(0.25, 1.0, None), 1.0);
    assert!(clip(f64::NAN, 1.0, None).is_nan());
    let mut scale = Scale {
        factor: 8.0,
        streak: PATIENCE - 1.0,
        skipped: 0.0,
    };
    assert_eq!(clip(16.0, 1.0, Some(&mut scale)), 1.0 / 8.0);
    assert_eq!(scale.numbers(), [16.0, 0.0, 0.0]);
    assert_eq!(clip(f64::INFINITY, 1.0, Some(&mut scale)), 0.0);
    assert_eq!(scale.numbers(), [8.0, 0.0, 1.0]);
}

#[cfg(feature = "gpu")]
mod on_gpu {
    use riverrun_kernels::adamw::check::ClipCase;
    use riverrun_kernels::gpu::Dtype;

    use super::*;
    use crate::device::{client, supports};

    #[test]
    fn clipping_is_right() {
        let Some(client) = client() else { return };
        for scaled in [false, true] {
            let case = ClipCase::new(scaled);
            for verdict in case.compare(&case.gpu(&client), &case.oracle()) {
                assert!(verdict.passes(), "scaled {scaled}: {verdict:?}");
            }
        }
    }

    fn check<E: Element>(dtype: Dtype, sizes: &[usize]) {
        let Some(client) = client() else { return };
        if !supports(&client, dtype) {
            return;
        }
        let case = Case::random(sizes, 3).rounded::<E>();
        assert_right::<E>(&case, || case.gpu(&client, dtype));
    }

    #[test]
    fn many_tensors_are_right() {
        let mut sizes = SIZES.to_vec();
        // More than go into one launch.
        sizes.extend((0..30).map(|n| 4 * n + 8));
        check::<f32>(Dtype::F32, &sizes);
    }

    #[test]
    fn half_precision_gradients_are_right() {
        check::<f16>(Dtype::F16, &SIZES[..6]);
        check::<bf16>(Dtype::Bf16, &SIZES[..6]);
    }
}
