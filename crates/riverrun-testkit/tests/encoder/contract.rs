//! What is refused, and what is not finite.

use riverrun_kernels::Error;
use riverrun_testkit::encoder::check::{encoded, random_run};
use riverrun_testkit::encoder::{
    Config, FEATURES, FlatStates, Observation, SCALARS, StateEncoder, encode_flat,
};

#[test]
fn the_same_run_gives_the_same_bits() {
    let run = random_run(300, 5);
    let encode = || encoded(Config::default(), &run).encode();
    assert_eq!(encode(), encode());
    assert_eq!(encode()[0], run[299].loss);
    assert_eq!(encode().len(), FEATURES);
}

#[test]
fn sizes_out_of_range_are_refused() {
    for (losses, gradients) in [(31, 64), (1001, 64), (256, 0), (256, 1001)] {
        let config = Config::default().with_history(losses, gradients);
        let found = StateEncoder::new(config);
        assert!(
            matches!(found, Err(Error::Encoder { .. })),
            "{losses} {gradients}"
        );
    }
    let config = Config::default().with_betas([0.9, 1.0]);
    assert!(matches!(
        StateEncoder::new(config),
        Err(Error::Encoder { .. })
    ));
    let encoders = [(32, 32), (33, 32)]
        .map(|(l, g)| StateEncoder::new(Config::default().with_history(l, g)).unwrap());
    assert!(matches!(
        FlatStates::new(&encoders),
        Err(Error::Encoder { .. })
    ));
}

#[test]
fn flat_arrays_have_their_lengths() {
    let encoders: Vec<_> = (0..3)
        .map(|n| encoded(Config::default(), &random_run(40 * n, n as u64)))
        .collect();
    let flat = FlatStates::new(&encoders).unwrap();
    assert_eq!(flat.runs(), 3);
    assert_eq!(flat.losses.len(), 3 * 256);
    assert_eq!(flat.gradients.len(), 3 * 64);
    assert_eq!(flat.scalars.len(), 3 * SCALARS);
    let found = encode_flat([256, 64], &flat.losses[1..], &flat.gradients, &flat.scalars);
    assert!(matches!(found, Err(Error::Length { what: "losses", .. })));
    assert!(encode_flat([256, 64], &[], &[], &[]).unwrap().is_empty());
}

#[test]
fn what_is_not_finite_counts_as_zero_and_is_marked() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for which in 0..8 {
            let mut run = random_run(50, 1);
            let last = run.last_mut().unwrap();
            let mut zero = *last;
            for (o, x) in [(&mut *last, bad), (&mut zero, 0.0)] {
                match which {
                    0 => o.loss = x,
                    1 => o.gradient_norm = x,
                    2 => o.learning_rate = x,
                    3 => o.momentum[0] = x,
                    4 => o.momentum[1] = x,
                    5 => o.variance[0] = x,
                    6 => o.variance[1] = x,
                    _ => o.prediction_error = x,
                }
            }
            let mut encoder = encoded(Config::default(), &run);
            let found = encoder.encode();
            *run.last_mut().unwrap() = zero;
            let mut expected = encoded(Config::default(), &run).encode();
            assert_eq!(found[63], 10.0);
            expected[63] = 10.0;
            assert_eq!(found, expected, "{bad} in {which}");
            encoder.push(&Observation::new(51, 1.0, 1.0, 1e-3));
            assert_eq!(encoder.encode()[63], 0.0);
        }
    }
}

#[test]
fn features_are_finite_whatever_comes() {
    let sizes = [
        0.0,
        -0.0,
        1e-45,
        1e-30,
        1.0,
        1e30,
        f32::MAX,
        f32::MIN,
        f32::NAN,
    ];
    let mut encoder = StateEncoder::new(Config::default()).unwrap();
    for n in 0..2000_usize {
        let pick = |k: usize| sizes[(n * k + n / 9) % sizes.len()];
        encoder.push(
            &Observation::new(n as u64, pick(1), pick(2), pick(4))
                .with_moments([pick(5), pick(7)], [pick(8), pick(1)]),
        );
        let found = encoder.encode();
        assert!(found.iter().all(|x| x.is_finite()), "{n}: {found:?}");
        assert!(found[26..].iter().all(|x| x.abs() <= 10.0));
    }
}

#[test]
fn a_constant_series_has_no_trend() {
    let mut encoder = StateEncoder::new(Config::default()).unwrap();
    for step in 0..300 {
        encoder.push(&Observation::new(step, 2.3, 0.7, 1e-3));
    }
    let found = encoder.encode();
    for n in [
        2, 5, 10, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 40, 41, 46, 47, 49, 51,
    ] {
        assert_eq!(found[n], 0.0, "feature {n}");
    }
    assert_eq!(found[6], 1.0);
}
