//! Sizes, refusals, and the formulas on numbers small enough to follow.

use riverrun_kernels::Error;
use riverrun_testkit::rollout::check::Case;
use riverrun_testkit::rollout::{Decode, Problem, memory, oracle};

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let reason = |problem: Problem| match problem.check() {
        Err(Error::Rollout { reason }) => reason,
        other => panic!("{problem:?}: {other:?}"),
    };
    assert!(reason(Problem::new(1, 0, 1)).contains("hidden"));
    assert!(reason(Problem::new(1, 4, 1).with_features(0)).contains("features"));
    assert!(reason(Problem::new(1, 4, 1).with_stochastic(0)).contains("classes"));
    assert!(reason(Problem::new(1, 4, 1).with_stochastic(5)).contains("classes"));
    let mut linear = Problem::new(1, 4, 1).with_decode(Decode::Linear);
    assert_eq!(linear.check(), Ok(()));
    linear.stochastic = 3;
    assert!(reason(linear).contains("linear"));
    assert_eq!(Problem::new(0, 4, 0).check(), Ok(()));
    for huge in [
        Problem::new(1 << 40, 1 << 20, 0),
        Problem::new(2, 4, usize::MAX),
        Problem::new(usize::MAX, 4, 1),
        Problem::new(1, 4, 1).with_features(usize::MAX),
    ] {
        assert!(reason(huge).contains("memory"), "{huge:?}");
    }
    assert_eq!(Problem::new(5, 256, 50).combined(), 288);
}

#[test]
fn arrays_of_other_lengths_are_refused() {
    let problem = Problem::new(2, 8, 3).with_features(5);
    for n in 0..7 {
        let mut case = Case::random(problem, 1);
        case.arrays_mut()[n].push(0.0);
        let found = case.cpu();
        assert!(
            matches!(found, Err(Error::Length { .. })),
            "array {n}: {found:?}"
        );
    }
}

#[test]
fn one_unit_by_hand() {
    // One unit, one feature that carries the loss, no bias.
    let problem = Problem::new(1, 1, 2).with_features(1).with_stochastic(1);
    let mut case = Case::random(problem, 0);
    let values: [&[f32]; 7] = [
        &[0.5, -1.0, 2.0],
        &[0.25, 0.75, -0.5],
        &[0.0; 3],
        &[
            1.5, -0.25, 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0.,
            0.,
        ],
        &[0.3],
        &[0.8],
        &[0.9],
    ];
    for (array, value) in case.arrays_mut().iter_mut().zip(values) {
        *array = value.to_vec();
    }
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let step = |h: f64, f: f64| {
        let z = sigmoid(0.5 * f + 0.25 * h);
        let r = sigmoid(-f + 0.75 * h);
        let c = (2.0 * f - 0.5 * r * h).tanh();
        let h = (1.0 - z) * h + z * c;
        // One class has probability 1.
        (h, (1.5 * h - 0.25).exp())
    };
    let (h1, l1) = step(f64::from(0.3_f32), f64::from(0.8_f32));
    let (h2, l2) = step(h1, l1);
    let found = case.oracle().unwrap();
    let expected = [f64::from(0.9_f32), l1, l2];
    for (found, expected) in found.trajectory.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-12, "{found} {expected}");
    }
    assert!((found.state[0] - h2).abs() < 1e-12);
    assert_eq!(found.state[1], 1.0);
    assert_eq!(found.entropy, [0.0]);
    assert!((found.norm[0] - h1.abs()).abs() < 1e-12);
}

#[test]
fn the_head_is_clamped() {
    for (weight, expected) in [(1e3_f32, 10.0_f64), (-1e3, -10.0)] {
        let mut case = Case::random(Problem::new(1, 4, 1).with_features(2), 0);
        // Everything that is not the head is zero: a state of zeros and equal probabilities.
        for array in &mut case.arrays_mut()[..6] {
            array.fill(0.0);
        }
        case.arrays_mut()[3][4..8].fill(weight);
        let found = case.oracle().unwrap();
        assert!((found.trajectory[1].ln() - expected).abs() < 1e-12);
        assert!((found.entropy[0] - 4.0_f64.ln()).abs() < 1e-12);
        let found = case.cpu().unwrap();
        assert!((f64::from(found.trajectory[1]).ln() - expected).abs() < 1e-6);
    }
}

#[test]
fn bytes_by_size() {
    // 245 760 weights and 768 biases.
    assert_eq!(memory::cell(256, 64), 986_112);
    let problem = |members| Problem::new(members, 256, 50).with_stochastic(256);
    let heads = (512 + 5120) * 4;
    for members in [1, 3, 5, 7, 10] {
        assert_eq!(
            memory::ensemble(&problem(members)),
            members * 986_112 + heads
        );
    }
    for hidden in [64, 128, 256, 512, 1024] {
        assert!(memory::shared(hidden) <= 48 << 10, "H {hidden}");
    }
    let case = Case::random(problem(5), 0);
    let arguments = case.arguments();
    let found = oracle::run(&case.problem, arguments).unwrap();
    let results: usize = found.named().iter().map(|(_, x)| x.len()).sum();
    let given = arguments.h0.len() + arguments.features.len() + arguments.loss.len();
    assert_eq!(memory::rollout(&case.problem), (results + given) * 4);
}
