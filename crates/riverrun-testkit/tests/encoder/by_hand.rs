//! Each feature from a history short enough to follow.

use riverrun_testkit::encoder::{Config, FEATURES, Observation, Phase, StateEncoder};

/// Losses and norms, one observation each.
fn encode(losses: &[f32], norms: &[f32]) -> [f32; FEATURES] {
    let mut encoder = StateEncoder::new(Config::default()).unwrap();
    for (step, (loss, norm)) in losses.iter().zip(norms).enumerate() {
        encoder.push(&Observation::new(step as u64, *loss, *norm, 1e-3));
    }
    encoder.encode()
}

#[track_caller]
fn assert_close(found: f32, expected: f64) {
    let error = (f64::from(found) - expected).abs();
    assert!(
        error <= 2e-6 * expected.abs().max(1.0),
        "{found} for {expected}"
    );
}

#[test]
fn nothing_yet() {
    let mut expected = [0.0; FEATURES];
    expected[6] = 1.0;
    assert_eq!(encode(&[], &[]), expected);
}

#[test]
fn one_observation() {
    let mut encoder = StateEncoder::new(Config::default()).unwrap();
    let o = Observation::new(2, 2.5, 0.1, 0.01)
        .with_moments([-0.001, 0.5], [0.04, 0.25])
        .with_phase(Phase::Predict, 50)
        .with_prediction(3, 0.125);
    encoder.push(&o);
    let f = encoder.encode();
    assert_eq!(f[..5], [2.5, 2.5, 0.0, 2.5, 2.5]);
    assert_eq!(f[5..7], [0.0, 1.0]);
    assert_close(f[7], 2e-4);
    assert_eq!(f[8..13], [0.1, 0.1, 0.0, 0.1, 0.1]);
    assert_close(f[13], -1.0);
    assert_close(f[14], 1.0);
    assert_eq!(f[15], 0.0);
    assert_eq!(f[16..20], [-0.001, 0.5, 0.04, 0.25]);
    assert_close(f[20], -2.0);
    assert_close(f[21], 0.81);
    assert_close(f[22], 0.998_001);
    assert_eq!(f[23], 0.0);
    assert_eq!(f[24], 2.0);
    assert_eq!(f[25], 0.5);
    assert_eq!(f[26..30], [2.5, 2.5, 2.5, 0.0]);
    assert!(f[30..42].iter().all(|x| *x == 0.0));
    assert_eq!(f[42..46], [0.1, 0.1, 0.1, 0.0]);
    assert_eq!(f[46..48], [0.0, 0.0]);
    assert_close(f[48], 1.0);
    assert_eq!(f[49], 0.0);
    assert_close(f[50], -1.0);
    assert_eq!(f[51], 0.0);
    assert_close(f[52], -3.0);
    assert_close(f[53], f64::from(0.04_f32).log10());
    assert_close(f[54], 0.001 / (0.04_f64 + 1e-8).sqrt());
    assert_eq!(f[55..57], [1.0, 0.0]);
    assert_close(f[57], 3.0_f64.ln() / 10.0);
    assert_eq!(f[58..62], [0.0, 0.0, 1.0, 0.0]);
    assert_close(f[62], 0.6);
    assert_eq!(f[63], 0.125);
}

#[test]
fn two_losses() {
    let f = encode(&[1.0, 3.0], &[4.0, 2.0]);
    assert_eq!(f[..5], [3.0, 2.0, 1.0, 1.0, 3.0]);
    assert_eq!(f[8..13], [2.0, 3.0, 1.0, 2.0, 4.0]);
    assert_close(f[14], 2.0 / 3.0);
    assert_close(f[15], 1.0 / 3.0);
    assert_eq!(f[26..29], [1.5, 1.125, 1.03125]);
    assert_close(f[29], 1.5 - 1.03125);
    assert_eq!((f[38], f[39]), (1.0, 1.0));
    assert_eq!(f[42..45], [3.5, 3.875, 3.96875]);
    assert_close(f[45], 3.5 - 3.96875);
    assert_eq!(f[47], -1.0);
    assert_close(f[48], 4.0 / 3.0);
    assert_close(f[50], 2.0_f64.log10());
}

#[test]
fn a_straight_line_of_losses() {
    // 32 losses from 10 down by 0.25, norms up by a factor of 1.1.
    let losses: Vec<f32> = (0..32).map(|n| 10.0 - 0.25 * n as f32).collect();
    let norms: Vec<f32> = (0..32).map(|n| 1.1_f32.powi(n)).collect();
    let f = encode(&losses, &norms);
    // Sixteen steps apart.
    assert_close(f[5], -4.0);
    assert_close(f[6], (10.0 - 0.25 * 23.5) / (10.0 - 0.25 * 7.5));
    assert_close(f[30], -0.25);
    assert_eq!((f[31], f[33]), (0.0, 0.0));
    assert_close(f[32], -(1.0 + 0.25e6_f64).log10());
    let line = |n: f64| 0.0625 * (n * n - 1.0) / 12.0;
    assert_close(f[34], line(16.0));
    assert_close(f[35], line(16.0) / line(32.0));
    assert_eq!(f[36..38], [0.0, 0.0]);
    assert_eq!(f[39], 0.0);
    assert_close(f[40], -0.25);
    assert_close(f[41], 1.0);
    assert_close(f[46], 1.1_f64.ln());
    assert_eq!(f[49], 0.0);
    // All changes are the same.
    assert_eq!(f[51], 0.0);
    // One fewer, and the windows are not full.
    let f = encode(&losses[..31], &norms[..31]);
    for n in [5, 30, 31, 32, 33, 34, 35, 36, 37, 40, 41, 46, 49, 51] {
        assert_eq!(f[n], 0.0, "feature {n}");
    }
    assert_eq!(f[6], 1.0);
}

#[test]
fn losses_to_and_fro() {
    // 3, 5, 3, 5, ...; norms that follow the change: 1 after a fall, 2 after a rise.
    let losses: Vec<f32> = (0..32)
        .map(|n| if n % 2 == 0 { 3.0 } else { 5.0 })
        .collect();
    let norms: Vec<f32> = (0..32)
        .map(|n| if n % 2 == 0 { 1.0 } else { 2.0 })
        .collect();
    let f = encode(&losses, &norms);
    assert_eq!((f[1], f[2]), (4.0, 1.0));
    assert_eq!((f[5], f[6]), (0.0, 1.0));
    assert_eq!((f[34], f[35], f[36]), (1.0, 1.0, 1.0));
    assert_close(f[37], 0.25);
    assert_eq!((f[38], f[39]), (1.0, 1.0));
    assert_eq!(f[49], 1.0);
    assert_close(f[51], 1.0);
}

#[test]
fn acceleration() {
    // A parabola 0.01 n²: means of eight lie 0.16 apart more from one to the next.
    let losses: Vec<f32> = (0..32).map(|n| 0.01 * (n * n) as f32).collect();
    let f = encode(&losses, &[1.0; 32]);
    let mean = |first: i32| {
        (first..first + 8)
            .map(|n| 0.01 * f64::from(n * n))
            .sum::<f64>()
            / 8.0
    };
    let velocity = (mean(24) - mean(16)) / 8.0;
    assert_close(f[30], velocity);
    assert_close(f[31], (velocity - (mean(16) - mean(8)) / 8.0) / 8.0);
    assert_eq!(f[33], 1.0);
}

#[test]
fn learning_rates() {
    let mut encoder = StateEncoder::new(Config::default()).unwrap();
    for step in 0..17 {
        let rate = if step == 5 {
            0.02
        } else {
            0.01 / (1.0 + step as f32)
        };
        encoder.push(&Observation::new(step, 1.0, 1.0, rate));
    }
    let f = encoder.encode();
    assert_close(f[55], 1.0 / 34.0);
    assert_close(f[56], (1.0_f64 / 17.0).log10());
}

#[test]
fn phases_in_turn() {
    let phases = [Phase::WarmUp, Phase::Full, Phase::Predict, Phase::Correct];
    for (n, phase) in phases.into_iter().enumerate() {
        let mut encoder = StateEncoder::new(Config::default()).unwrap();
        encoder.push(&Observation::new(1, 1.0, 1.0, 1e-3).with_phase(phase, 0));
        let f = encoder.encode();
        assert_eq!(f[24], n as f32);
        let mut one = [0.0; 4];
        one[n] = 1.0;
        assert_eq!(f[58..62], one);
    }
}

#[test]
fn rings_forget() {
    let mut losses = vec![100.0; 10];
    losses.extend([1.0; 256]);
    let mut norms = vec![7.0; 202];
    norms.extend([1.0; 64]);
    let f = encode(&losses, &norms);
    assert_eq!((f[1], f[4]), (1.0, 1.0));
    assert_eq!((f[9], f[12]), (1.0, 1.0));
    // Moving averages do not.
    assert!(f[28] > 1.0);
}
