//! Reports to `tracing`. A binary of its own: `tracing` remembers for each span and event whether anyone listens,
//! and a test on another thread that reaches one first, with no subscriber, may leave it switched off.

mod subscriber;

use riverrun_testkit::encoder::check::{encoded, random_run};
use riverrun_testkit::encoder::{Config, FEATURES};
use riverrun_testkit::rollout::{Outcome, Problem, spans};
use subscriber::Reported;

#[test]
fn an_encode_is_reported() {
    let run = random_run(40, 6);
    let encoder = encoded(Config::default(), &run);
    let last = &run[39];
    let mut found = [0.0; FEATURES];
    let reported = Reported::by(|| found = encoder.encode());
    let [step, loss, gradient] = [
        format!("step={:?}", last.step as f64),
        format!("loss={:?}", f64::from(last.loss)),
        format!("gradient_norm={:?}", f64::from(last.gradient_norm)),
    ];
    let [first, ninth] = [found[0], found[8]].map(f64::from);
    let features = format!("loss={first:?} gradient_norm={ninth:?}");
    assert_eq!(
        reported,
        [
            format!("span encode_state {step} {loss} {gradient}"),
            format!("event features={FEATURES} {features}"),
        ]
    );
    // Without a subscriber the numbers are the same.
    assert_eq!(found, encoder.encode());
}

#[test]
fn spans_name_what_they_carry() {
    let problem = Problem::new(2, 3, 1).with_stochastic(3);
    let arrays = [4, 12, 2, 2, 20].map(|n| vec![0.25; n]);
    let found = Outcome::from_arrays(arrays);
    let all = Reported::by(|| spans(&problem, &found));
    let count = |start: &str| all.iter().filter(|line| line.starts_with(start)).count();
    assert_eq!(
        (count("span rollout"), count("span member"), count("event")),
        (1, 2, 3)
    );
    for field in [
        "loss_pred",
        "hidden_norm",
        "delta",
        "variance",
        "smoothness",
    ] {
        assert!(
            all.iter().any(|line| line.contains(field)),
            "{field}: {all:?}"
        );
    }
}
