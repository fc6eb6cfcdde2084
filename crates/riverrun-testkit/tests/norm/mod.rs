//! RMSNorm and LayerNorm at any shape and tuning; their oracle against finite differences; and what they refuse.

use half::bf16;
use proptest::prelude::*;
use riverrun_kernels::Error;
use riverrun_kernels::norm::{Kind, Spec, cpu};
use riverrun_testkit::norm::{Norm, Options, oracle};
#[cfg(feature = "gpu")]
use riverrun_testkit::{Case, judge};

use crate::shared::{assert_cpu_is_right, assert_slopes};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn cpu_is_right_at_any_shape(
        rows in 0usize..200,
        dim in 1usize..90,
        layer: bool,
        options in 0usize..8,
        seed: u64,
    ) {
        let kind = if layer { Kind::Layer } else { Kind::Rms };
        let case = Norm::random(kind, [rows, dim], Options::nth(options), seed);
        assert_cpu_is_right::<f32>(&case);
        assert_cpu_is_right::<bf16>(&case);
    }
}

#[test]
fn wrong_lengths_are_refused() {
    let spec = Spec {
        kind: Kind::Layer,
        epsilon: 1e-5,
    };
    let run = |x: &[f32], gamma: &[f32], beta: Option<&[f32]>, y: &mut [f32]| {
        let args = cpu::Forward {
            x,
            residual: None,
            gamma,
            beta,
            y,
        };
        cpu::forward(&spec, args)
    };
    let length = |what, expected, found| {
        Err(Error::Length {
            what,
            expected,
            found,
        })
    };
    assert_eq!(run(&[], &[], None, &mut []), Err(Error::NoChannels));
    assert_eq!(
        run(&[1.0; 6], &[1.0; 4], None, &mut [0.0; 8]),
        length("x, in whole rows", 8, 6)
    );
    assert_eq!(
        run(&[1.0; 4], &[1.0; 2], None, &mut [0.0; 6]),
        length("y", 4, 6)
    );
    assert_eq!(
        run(&[1.0; 4], &[1.0; 2], Some(&[1.0; 3]), &mut [0.0; 4]),
        length("beta", 2, 3)
    );
}

#[test]
fn oracles_have_the_slopes_of_their_functions() {
    for kind in Kind::ALL {
        let case = Norm::random(kind, [3, 14], Options::nth(2), 6);
        let spec = &case.spec;
        let (x, gamma, w) = (&case.x[..], &case.gamma[..], &case.d_y[..]);
        let beta = case.beta.as_deref().expect("has one");
        let found = oracle::backward(spec, x, gamma, w, None);
        let of_x = |x: &[f64]| oracle::forward(spec, x, gamma, Some(beta));
        assert_slopes(x, w, of_x, &found.d_x);
        let of_gamma = |gamma: &[f64]| oracle::forward(spec, x, gamma, Some(beta));
        assert_slopes(gamma, w, of_gamma, &found.d_gamma);
        let of_beta = |beta: &[f64]| oracle::forward(spec, x, gamma, Some(beta));
        assert_slopes(beta, w, of_beta, &found.d_beta);
    }
}

#[cfg(feature = "gpu")]
#[test]
fn every_tuning_is_right_on_a_gpu() {
    use riverrun_kernels::gpu::Dtype;
    use riverrun_kernels::norm::gpu::Tuning;

    let Some(client) = crate::device::client() else {
        return;
    };
    for (bytes, per_thread, cube, cubes) in [(4, 1, 64, 0), (16, 8, 128, 1), (8, 3, 256, 4)] {
        let tuning = Some(Tuning {
            bytes,
            per_thread,
            cube,
            cubes,
        });
        for kind in Kind::ALL {
            for (shape, options) in [([300, 40], 3), ([3, 333], 0)] {
                let case = Norm::random(kind, shape, Options::nth(options), 5).rounded::<f32>();
                let run = || case.tuned(&client, Dtype::F32, [tuning; 2]);
                let verdict = judge::<f32, _>(&case, run).expect("a problem it can run");
                assert!(verdict.passes(), "{tuning:?} {shape:?}: {verdict:?}");
            }
        }
    }
}
