//! Edge cases of the contract: no steps, extreme gates, values that are not finite, wrong arguments.

use riverrun_kernels::Error;
use riverrun_testkit::recurrence::check::{Case, Options, Outcome};
use riverrun_testkit::recurrence::{Candidate, Gate, Problem, Rows, RowsMut, Shape, cpu};

use crate::recurrence::assertions::assert_same_bits;

const EVERYTHING: Options = Options {
    h0: true,
    reset: true,
    reverse: false,
    d_h_last: true,
};
const STATES: Options = Options {
    reset: false,
    ..EVERYTHING
};

/// Both kernels that gates can be held against exactly.
fn run(case: &Case) -> [Outcome; 2] {
    [case.cpu::<f32>(), case.cpu::<f64>()]
}

#[test]
fn no_steps_hand_the_state_through() {
    for gate in Gate::all() {
        let case = Case::random(Problem::new(Shape::new(3, 0, 5), gate), STATES, 1);
        let case = case.rounded::<f32>();
        for outcome in run(&case) {
            assert_same_bits("h_last", &outcome.h_last, case.h0.as_ref().unwrap());
            assert_same_bits("d_h0", &outcome.d_h0, case.d_h_last.as_ref().unwrap());
        }
        let without = Case {
            h0: None,
            d_h_last: None,
            ..case
        };
        for outcome in run(&without) {
            assert_same_bits("h_last", &outcome.h_last, &[0.0; 15]);
            assert_same_bits("d_h0", &outcome.d_h0, &[0.0; 15]);
        }
    }
}

/// A case of `gate` with the given gate inputs everywhere, and random candidates and states.
fn with_gates(gate: Gate, gates: &[f64]) -> Case {
    let problem = Problem::new(Shape::new(2, 9, 21), gate);
    let mut case = Case::random(problem, STATES, 2).rounded::<f32>();
    for (input, gate) in case.inputs.iter_mut().zip(gates) {
        input.fill(*gate);
    }
    case
}

/// Gates and their inputs such that the state is kept as it is.
fn shut() -> Vec<Case> {
    let candidate = Candidate::Identity;
    vec![
        with_gates(Gate::Raw, &[1.0, 0.0]),
        with_gates(Gate::Sigmoid, &[1e4, 0.0]),
        with_gates(Gate::MinGru { candidate }, &[-1e4]),
        with_gates(
            Gate::MinLstm {
                candidate,
                normalized: false,
            },
            &[1e4, -1e4],
        ),
        with_gates(
            Gate::MinLstm {
                candidate,
                normalized: true,
            },
            &[1e4, -1e4],
        ),
        with_gates(
            Gate::MinLstm {
                candidate,
                normalized: true,
            },
            &[-500.0, -1e4],
        ),
        with_gates(Gate::RgLru, &[0.0]),
        with_gates(Gate::RgLru, &[-3.0]),
    ]
}

/// Gates and their inputs such that the state is replaced by the last input.
fn open() -> Vec<Case> {
    let candidate = Candidate::Identity;
    vec![
        with_gates(Gate::Raw, &[0.0]),
        with_gates(Gate::Sigmoid, &[-1e4]),
        with_gates(Gate::MinGru { candidate }, &[1e4]),
        with_gates(
            Gate::MinLstm {
                candidate,
                normalized: false,
            },
            &[-1e4, 1e4],
        ),
        with_gates(
            Gate::MinLstm {
                candidate,
                normalized: true,
            },
            &[-1e4, 1e4],
        ),
        with_gates(
            Gate::MinLstm {
                candidate,
                normalized: true,
            },
            &[-1e4, -500.0],
        ),
        with_gates(Gate::RgLru, &[1e4]),
    ]
}

#[test]
fn a_shut_gate_keeps_the_state_exactly() {
    for case in shut() {
        for outcome in run(&case) {
            assert_same_bits(
                case.problem.gate.name(),
                &outcome.h_last,
                case.h0.as_ref().unwrap(),
            );
        }
    }
}

#[test]
fn an_open_gate_replaces_the_state_exactly() {
    for case in open() {
        for outcome in run(&case) {
            assert_same_bits(
                case.problem.gate.name(),
                &outcome.h,
                case.inputs.last().unwrap(),
            );
            assert!(outcome.d_h0.iter().all(|&d| d == 0.0));
        }
    }
}

#[test]
fn min_lstm_shares_evenly_where_both_gates_underflow() {
    let gate = Gate::MinLstm {
        candidate: Candidate::Identity,
        normalized: true,
    };
    for k in [-80.0, -110.0, -800.0, -1e4, 110.0, 1e4] {
        let case = with_gates(gate, &[k, k]);
        let truth = case.oracle();
        for (outcome, eps) in run(&case)
            .iter()
            .zip([f64::from(f32::EPSILON), f64::EPSILON])
        {
            for ((name, found), (_, truth)) in outcome.tensors().iter().zip(truth.tensors()) {
                for (found, truth) in found.iter().zip(truth) {
                    let error = (found - truth).abs();
                    assert!(
                        error <= 16.0 * eps,
                        "{name} at k = {k}: {found}, not {truth}"
                    );
                }
            }
        }
    }
}

#[test]
fn rg_lru_keeps_its_digits_near_no_decay() {
    // 1 - e^-2s as a difference has no digits left at any of these in f32. The gradient of s is that of √(2s) there.
    for s in [1e-12, 1e-9, 1e-7, 2e-7, 1e-6, 1e-4, 1e-2, 0.49, 0.51] {
        let mut case = with_gates(Gate::RgLru, &[s]).rounded::<f32>();
        case.h0 = None;
        let truth = case.oracle();
        for (outcome, eps) in run(&case)
            .iter()
            .zip([f64::from(f32::EPSILON), f64::EPSILON])
        {
            for ((name, found), (_, truth)) in outcome.tensors().iter().zip(truth.tensors()) {
                let scale = truth.iter().fold(0.0, |scale: f64, x| scale.max(x.abs()));
                for (found, truth) in found.iter().zip(truth) {
                    let error = (found - truth).abs();
                    assert!(
                        error <= 16.0 * eps * scale,
                        "{name} at s = {s}: {found}, not {truth}"
                    );
                }
            }
        }
    }
}

#[test]
fn rg_lru_without_decay_has_the_bounded_gradient() {
    let mut case = with_gates(Gate::RgLru, &[0.0]);
    case.h0 = None;
    case.d_h_last = None;
    let Shape { batch, steps, dim } = case.problem.shape;
    for outcome in run(&case) {
        for (b, d) in (0..batch).flat_map(|b| (0..dim).map(move |d| (b, d))) {
            // Nothing is taken, so h is 0, and all later gradients arrive in full.
            let mut total = 0.0;
            for t in (0..steps).rev() {
                let at = (b * steps + t) * dim + d;
                total += case.d_h[at];
                let slope = 2.0 * Gate::STEEPEST_ROOT * case.inputs[1][at];
                let error = (outcome.d_inputs[0][at] - total * slope).abs();
                assert!(error <= 1e-5 * 2.0 * Gate::STEEPEST_ROOT);
                assert_eq!((outcome.h[at], outcome.d_inputs[1][at]), (0.0, 0.0));
            }
        }
    }
}

#[test]
fn extreme_gates_have_finite_gradients() {
    for gate in Gate::all().into_iter().filter(|&gate| gate != Gate::Raw) {
        for k in [-1e4, -110.0, -88.0, 88.0, 110.0, 1e4] {
            for j in [-1e4, 0.0, 1e4] {
                let mut gates = vec![k, j];
                gates.truncate(gate.inputs() - 1);
                for outcome in run(&with_gates(gate, &gates)) {
                    for (name, tensor) in outcome.tensors() {
                        let finite = tensor.iter().all(|x| x.is_finite());
                        assert!(finite, "{} {name} at {gates:?}", gate.name());
                    }
                }
            }
        }
    }
}

/// Fills the inputs, `h0` and gradients of sequence `b` with `x`.
fn spoil(case: &mut Case, b: usize, x: f64) {
    let Shape { steps, dim, .. } = case.problem.shape;
    let tensor = b * steps * dim..(b + 1) * steps * dim;
    let state = b * dim..(b + 1) * dim;
    case.inputs
        .iter_mut()
        .for_each(|input| input[tensor.clone()].fill(x));
    case.d_h[tensor].fill(x);
    case.h0.iter_mut().for_each(|h0| h0[state.clone()].fill(x));
    case.d_h_last
        .iter_mut()
        .for_each(|d| d[state.clone()].fill(x));
}

#[test]
fn a_sequence_that_is_not_finite_harms_no_other() {
    for gate in Gate::all() {
        for x in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let clean = Case::random(Problem::new(Shape::new(3, 8, 20), gate), EVERYTHING, 3);
            let mut spoilt = clean.clone();
            spoil(&mut spoilt, 1, x);
            for (clean, spoilt) in run(&clean).iter().zip(&run(&spoilt)) {
                for ((name, clean), (_, spoilt)) in clean.tensors().iter().zip(spoilt.tensors()) {
                    let third = clean.len() / 3;
                    assert_same_bits(name, &spoilt[..third], &clean[..third]);
                    assert_same_bits(name, &spoilt[2 * third..], &clean[2 * third..]);
                }
            }
        }
    }
}

#[test]
fn nothing_passes_a_reset() {
    let shape = Shape::new(1, 6, 18);
    let half = 3 * shape.dim;
    for gate in Gate::all() {
        for x in [f64::NAN, f64::INFINITY] {
            let mut clean = Case::random(Problem::new(shape, gate), STATES, 4);
            clean.reset = Some(vec![false, false, false, true, false, false]);
            // Forward: what comes before the reset is lost. Backward: what comes after it is.
            let mut before = clean.clone();
            before
                .inputs
                .iter_mut()
                .for_each(|input| input[..half].fill(x));
            before.h0 = Some(vec![x; shape.dim]);
            let mut after = clean.clone();
            after.d_h[half..].fill(x);
            after.d_h_last = Some(vec![x; shape.dim]);
            let runs = run(&clean).into_iter().zip(run(&before)).zip(run(&after));
            for ((clean, before), after) in runs {
                assert_same_bits("h", &before.h[half..], &clean.h[half..]);
                assert_same_bits("d_h0", &after.d_h0, &clean.d_h0);
                for k in 0..gate.inputs() {
                    let clean = &clean.d_inputs[k];
                    assert_same_bits("d_input", &before.d_inputs[k][half..], &clean[half..]);
                    assert_same_bits("d_input", &after.d_inputs[k][..half], &clean[..half]);
                }
            }
        }
    }
}

#[test]
fn wrong_arguments_are_refused() {
    let shape = Shape::new(2, 3, 4);
    let problem = Problem::new(shape, Gate::Raw);
    let data = vec![0.0_f32; 24];
    let rows = Rows::contiguous(&data, shape).unwrap();
    let forward = |problem: &Problem, inputs: &[Rows<f32>], h0, reset| {
        let mut h = vec![f32::NAN; 24];
        let out = RowsMut::contiguous(&mut h, shape).unwrap();
        let result = cpu::forward(problem, inputs, h0, reset, out);
        assert!(
            result.is_ok() || h.iter().all(|h| h.is_nan()),
            "written in spite of an error"
        );
        result
    };

    assert_eq!(forward(&problem, &[rows, rows], None, None), Ok(()));
    let expected = Error::Inputs {
        gate: "raw",
        expected: 2,
        found: 1,
    };
    assert_eq!(forward(&problem, &[rows], None, None), Err(expected));
    let expected = Error::Length {
        what: "h0",
        expected: 8,
        found: 7,
    };
    assert_eq!(
        forward(&problem, &[rows, rows], Some(&data[..7]), None),
        Err(expected)
    );
    let expected = Error::Length {
        what: "reset",
        expected: 6,
        found: 5,
    };
    assert_eq!(
        forward(&problem, &[rows, rows], None, Some(&[false; 5])),
        Err(expected)
    );
    let other = Rows::contiguous(&data, Shape::new(3, 2, 4)).unwrap();
    let expected = Error::Shape {
        what: "input",
        expected: [2, 3, 4],
        found: [3, 2, 4],
    };
    assert_eq!(forward(&problem, &[rows, other], None, None), Err(expected));
    let empty = Shape::new(2, 3, 0);
    let none = Rows::contiguous(&data[..0], empty).unwrap();
    let without_channels = Problem::new(empty, Gate::Raw);
    assert_eq!(
        forward(&without_channels, &[none, none], None, None),
        Err(Error::NoChannels)
    );

    let backward = |outputs: usize, d_h_last, mut d_h0: Vec<f32>| {
        let mut d = vec![0.0_f32; 24 * outputs];
        let out = d
            .chunks_mut(24)
            .map(|d| RowsMut::contiguous(d, shape).unwrap())
            .collect();
        let inputs = [rows, rows];
        let d_h0 = Some(&mut d_h0[..]);
        cpu::backward(
            &problem, &inputs, None, None, rows, rows, d_h_last, out, d_h0,
        )
    };
    assert_eq!(backward(2, None, vec![0.0; 8]), Ok(()));
    let expected = Error::Inputs {
        gate: "raw",
        expected: 2,
        found: 3,
    };
    assert_eq!(backward(3, None, vec![0.0; 8]), Err(expected));
    let expected = Error::Length {
        what: "d_h0",
        expected: 8,
        found: 9,
    };
    assert_eq!(backward(2, None, vec![0.0; 9]), Err(expected));
    let expected = Error::Length {
        what: "d_h_last",
        expected: 8,
        found: 1,
    };
    assert_eq!(backward(2, Some(&data[..1]), vec![0.0; 8]), Err(expected));
}
