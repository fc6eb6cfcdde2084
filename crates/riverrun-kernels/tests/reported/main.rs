//! The report of an encode to `tracing`. A binary of its own: `tracing` remembers for each span and event whether anyone listens,
//! and a test on another thread that reaches one first, with no subscriber, may leave it switched off.

mod subscriber;

use riverrun_kernels::encoder::check::{encoded, random_run};
use riverrun_kernels::encoder::{Config, FEATURES};

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
