//! Metrics, forecasts and proposed changes, by hand.

use riverrun_testkit::rollout::{Metrics, Outcome, Problem};

#[test]
fn the_four_metrics() {
    let metrics = Metrics::new(&[4.0, 2.0, 3.0, 3.0], &[1.0, 2.0, 3.0]);
    assert_eq!(metrics.step_deltas, [2.0, 1.0, 0.0]);
    assert_eq!(metrics.hidden_norms, [1.0, 2.0, 3.0]);
    assert_eq!(metrics.loss_variance, 0.5);
    // |3 - 4 + 4| and |3 - 6 + 2|.
    assert_eq!(metrics.smoothness, 2.0);
    let short = Metrics::new(&[4.0, 2.0], &[1.0]);
    assert_eq!((short.smoothness, short.loss_variance), (0.0, 1.0));
}

fn two_members() -> (Problem, Outcome<f32>) {
    let problem = Problem::new(2, 3, 1).with_stochastic(3);
    let mut delta = vec![0.0; 20];
    delta[10] = 0.5;
    let arrays = [
        vec![2.0, 1.0, 2.0, 3.0],
        vec![0.0; 12],
        vec![0.25, 0.75],
        vec![1.0, 1.0],
        delta,
    ];
    (problem, Outcome::from_arrays(arrays))
}

#[test]
fn the_forecast_of_two_members() {
    let (problem, found) = two_members();
    let summary = found.summary(&problem).unwrap();
    assert_eq!(summary.trajectory, [2.0, 2.0]);
    assert_eq!(summary.variance, 1.0);
    assert!((summary.total_std - 1.1).abs() < 1e-12);
    assert!((summary.epistemic - 0.55).abs() < 1e-12);
    assert!((summary.bounds[1] - 4.2).abs() < 1e-12);
    assert!((summary.confidence - 1.0 / 2.1).abs() < 1e-12);
    assert_eq!(summary.mean_entropy, 0.5);
    assert!(found.summary(&Problem::new(0, 3, 1)).is_none());
}

#[test]
fn the_change_of_the_weights() {
    let (problem, found) = two_members();
    let deltas = found.weight_deltas(&problem, 0.1, 2.0);
    // The first forecasts an improvement by half.
    assert!((deltas[0].magnitude - 0.3).abs() < 1e-12);
    assert_eq!(deltas[0].direction_confidence, 0.5);
    assert!((deltas[0].layers[3] - 0.3 * 0.25).abs() < 1e-12);
    // The second a rise, which is no improvement.
    assert!((deltas[1].magnitude - 0.2 * (1.0 + 0.5_f64.tanh())).abs() < 1e-12);
}
