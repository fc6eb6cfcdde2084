//! AdamW and sums of vectors at any sizes, clipping, and what they refuse.

mod flat;

use proptest::prelude::*;
use riverrun_kernels::Error;
use riverrun_kernels::adamw::clip::{EPSILON, PATIENCE, Scale, clip};
use riverrun_kernels::adamw::{Step, cpu};
use riverrun_testkit::optimizer::Steps;

use crate::shared::assert_cpu_is_right;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn cpu_is_right_at_any_size(sizes in prop::collection::vec(0usize..300, 1..5), seed: u64) {
        assert_cpu_is_right::<f32>(&Steps::random(&sizes, seed));
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
