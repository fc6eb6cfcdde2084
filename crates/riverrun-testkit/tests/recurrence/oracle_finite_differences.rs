//! The oracle's gradients against central differences of its forward pass.

use riverrun_testkit::recurrence::check::{Case, Options};
use riverrun_testkit::recurrence::{Candidate, Gate, Problem, Shape};

/// A loss that is linear in `h` and `h_last`, so that `d_h` and `d_h_last` are its gradients.
fn loss(case: &Case) -> f64 {
    let outcome = case.oracle();
    let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
    let last = case
        .d_h_last
        .as_ref()
        .map_or(0.0, |d| dot(d, &outcome.h_last));
    dot(&case.d_h, &outcome.h) + last
}

/// The derivative of the loss with respect to the number that `place` finds in the case.
fn difference(case: &Case, place: impl Fn(&mut Case) -> &mut f64) -> f64 {
    // The error is STEP² from the curve and eps / STEP from rounding: 1e-10 in all.
    const STEP: f64 = 1e-5;
    let moved = |by: f64| {
        let mut case = case.clone();
        *place(&mut case) += by;
        loss(&case)
    };
    (moved(STEP) - moved(-STEP)) / (2.0 * STEP)
}

#[test]
fn gradients_are_the_slopes_of_the_loss() {
    for gate in Gate::all() {
        for options in Options::all() {
            let problem = Problem::new(Shape::new(2, 7, 2), gate);
            let mut case = Case::random(problem, options, 42);
            if let Gate::MinGru { candidate } | Gate::MinLstm { candidate, .. } = gate
                && candidate == Candidate::G
            {
                // g' jumps at 0, where a difference means nothing.
                for u in case.inputs.last_mut().unwrap() {
                    *u += 0.1_f64.copysign(*u);
                }
            }
            let truth = case.oracle();
            let check = |name: &str, i: usize, found: f64, slope: f64| {
                let error = (found - slope).abs();
                assert!(
                    error <= 1e-8 * (1.0 + slope.abs()),
                    "{} {options:?}: {name}[{i}] is {found}, the slope is {slope}",
                    gate.name()
                );
            };
            for k in 0..case.inputs.len() {
                for i in 0..problem.shape.elements() {
                    let slope = difference(&case, |case| &mut case.inputs[k][i]);
                    check(&format!("d_input {k}"), i, truth.d_inputs[k][i], slope);
                }
            }
            // The state that an absent h0 stands for has a gradient too.
            let zeros = vec![0.0; problem.shape.state()];
            let case = Case {
                h0: Some(case.h0.clone().unwrap_or(zeros)),
                ..case
            };
            for i in 0..problem.shape.state() {
                let slope = difference(&case, |case| &mut case.h0.as_mut().unwrap()[i]);
                check("d_h0", i, truth.d_h0[i], slope);
            }
        }
    }
}
