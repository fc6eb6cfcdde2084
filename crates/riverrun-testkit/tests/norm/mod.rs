//! RMSNorm and LayerNorm at any shape and tuning; their oracle against finite differences; and what they refuse.

use half::bf16;
use proptest::prelude::*;
use riverrun_kernels::norm::{Kind, Spec, cpu};
use riverrun_kernels::{CpuElement, Error};
use riverrun_testkit::norm::{Norm, Options, oracle};
use riverrun_testkit::{Case, judge};

fn on_cpu<E: CpuElement>(case: &Norm) {
    let case = case.clone().rounded::<E>();
    let verdict = judge::<E, _>(&case, || case.cpu::<E>()).expect("a problem it can run");
    assert!(
        verdict.passes(),
        "{} {:?}: {verdict:?}",
        E::NAME,
        case.shape
    );
}

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
        on_cpu::<f32>(&case);
        on_cpu::<bf16>(&case);
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

/// `Σ w f(x)` has the slopes that the backward oracle gives.
fn assert_slopes(x: &[f64], w: &[f64], f: impl Fn(&[f64]) -> Vec<f64>, slopes: &[f64]) {
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
