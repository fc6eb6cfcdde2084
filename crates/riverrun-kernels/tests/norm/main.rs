//! RMSNorm and LayerNorm: oracle against finite differences, CPU and GPU kernels against the oracle. The GPU part runs on
//! a software Vulkan driver too.

#[cfg(feature = "gpu")]
#[path = "../device/mod.rs"]
mod device;

use half::{bf16, f16};
use proptest::prelude::*;
use riverrun_kernels::norm::check::{Case, Options, Outcome};
use riverrun_kernels::norm::{Kind, Spec, cpu, oracle};
use riverrun_kernels::{CpuElement, Error};

fn assert_right<E: CpuElement>(
    case: &Case,
    what: &str,
    mut run: impl FnMut() -> Result<Outcome, Error>,
) {
    let truth = case.oracle::<E>();
    let found = run().expect("a problem it can run");
    for verdict in case.compare::<E>(&found, &truth) {
        assert!(
            verdict.passes(),
            "{what} {:?} {} {:?}: {verdict:?}",
            case.spec.kind,
            E::NAME,
            case.shape
        );
    }
    let again = run().expect("a problem it can run");
    assert!(
        found.same_bits(&again),
        "{what} differs from run to run: {:?} {} {:?}",
        case.spec.kind,
        E::NAME,
        case.shape
    );
}

fn on_cpu<E: CpuElement>(case: &Case) {
    let case = case.rounded::<E>();
    assert_right::<E>(&case, "cpu", || case.cpu::<E>());
}

const SHAPES: [[usize; 2]; 9] = [
    [0, 5],
    [1, 1],
    [3, 1],
    [3, 31],
    [130, 64],
    [70, 100],
    [65, 255],
    [2, 5120],
    [1, 10_007],
];

#[test]
fn cpu_is_right_in_every_type() {
    for (n, shape) in SHAPES.into_iter().enumerate() {
        for kind in Kind::ALL {
            let case = Case::random(kind, shape, Options::nth(n * 3), 7 + n as u64);
            on_cpu::<f32>(&case);
            on_cpu::<f64>(&case);
            on_cpu::<f16>(&case);
            on_cpu::<bf16>(&case);
        }
    }
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
        let case = Case::random(kind, [rows, dim], Options::nth(options), seed);
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
        let case = Case::random(kind, [3, 14], Options::nth(2), 6);
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
mod on_gpu {
    use cubecl::client::Client;
    use riverrun_kernels::gpu::Dtype;
    use riverrun_kernels::norm::gpu::Tuning;

    use super::*;
    use crate::device::{client, supports};

    fn check<E: CpuElement>(
        client: &Client,
        dtype: Dtype,
        case: &Case,
        tunings: [Option<Tuning>; 2],
    ) {
        if !supports(client, dtype) {
            return;
        }
        let case = case.rounded::<E>();
        assert_right::<E>(&case, "gpu", || case.gpu(client, dtype, tunings));
    }

    #[test]
    fn every_shape_is_right() {
        let Some(client) = client() else { return };
        for (n, shape) in SHAPES.into_iter().enumerate() {
            for (m, kind) in Kind::ALL.into_iter().enumerate() {
                let case = Case::random(kind, shape, Options::nth(n * 3 + m), 7 + n as u64);
                check::<f32>(&client, Dtype::F32, &case, [None; 2]);
            }
        }
    }

    #[test]
    fn half_precision_storage_is_right() {
        let Some(client) = client() else { return };
        for (n, shape) in [[5, 96], [3, 257]].into_iter().enumerate() {
            let case = Case::random(Kind::Layer, shape, Options::nth(3), 11 + n as u64);
            check::<f16>(&client, Dtype::F16, &case, [None; 2]);
            check::<bf16>(&client, Dtype::Bf16, &case, [None; 2]);
        }
    }

    #[test]
    fn every_tuning_is_right() {
        let Some(client) = client() else { return };
        for (bytes, per_thread, cube, cubes) in [(4, 1, 64, 0), (16, 8, 128, 1), (8, 3, 256, 4)] {
            let tuning = Some(Tuning {
                bytes,
                per_thread,
                cube,
                cubes,
            });
            for kind in Kind::ALL {
                let case = Case::random(kind, [300, 40], Options::nth(3), 5);
                check::<f32>(&client, Dtype::F32, &case, [tuning; 2]);
                let case = Case::random(kind, [3, 333], Options::nth(0), 5);
                check::<f32>(&client, Dtype::F32, &case, [tuning; 2]);
            }
        }
    }
}
