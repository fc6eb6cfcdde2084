//! A scan's steps as affine maps, against the oracle and the scan.

use burn::tensor::Tensor;
use riverrun::Sequence;
use riverrun::ops::{Affine, ScanOptions, coefficients, gated_scan, linear_scan};
use riverrun_testkit::recurrence::Gate;

use crate::common::{assert_close, devices, numbers};
use crate::random;

const SHAPE: [usize; 3] = [2, 9, 12];

/// Inputs of a gate, `[B, T, G·D]`, from nearly closed to nearly open; rates of decay are above 0.
fn inputs(gate: Gate, device: &burn::tensor::Device) -> Tensor<3> {
    let [b, t, d] = SHAPE;
    let k = random([b, t, gate.inputs() * d], device) * 3.0;
    match gate {
        Gate::RgLru => k.abs() + 0.01,
        _ => k,
    }
}

#[test]
fn coefficients_are_those_of_the_oracle() {
    for (name, device) in devices() {
        for gate in Gate::all() {
            let k = inputs(gate, &device);
            let steps = coefficients(k.clone(), gate).unwrap();
            let (k, d) = (numbers(k), SHAPE[2]);
            let rows = k.chunks(gate.inputs() * d);
            let expected: Vec<_> = rows
                .flat_map(|row| {
                    let input = move |i: usize| row.iter().skip(i).step_by(d).copied();
                    (0..d).map(move |i| gate.reference(&input(i).collect::<Vec<f64>>()))
                })
                .collect();
            let hold = |what: &str, found: Tensor<3>, expected: Vec<f64>| {
                let what = format!("{name} {} {what}", gate.name());
                // A few roundings of numbers up to 3.
                assert_close(&what, &numbers(found), &expected, 2e-6);
            };
            hold("a", steps.a, expected.iter().map(|step| step.a).collect());
            hold("b", steps.b, expected.iter().map(|step| step.b).collect());
        }
    }
}

#[test]
fn steps_composed_are_the_scan_with_its_gradients() {
    for (name, device) in devices() {
        let device = device.autodiff();
        for gate in Gate::all() {
            let [b, t, d] = SHAPE;
            let k = inputs(gate, &device).detach().require_grad();
            let h0 = random([b, d], &device).detach().require_grad();
            let weights = random([b, d], &device);
            let slopes = |last: Tensor<2>| {
                let grads = (last.clone() * weights.clone()).sum().backward();
                let of_k = numbers(k.grad(&grads).expect("a gradient"));
                let of_h0 = numbers(h0.grad(&grads).expect("a gradient"));
                [numbers(last), of_k, of_h0]
            };
            let sequence = || Sequence::new().with_state(h0.clone());
            let options = ScanOptions::new();
            let (_, scanned) = gated_scan(k.clone(), gate, sequence(), options).unwrap();
            let expected = slopes(scanned);

            let steps = coefficients(k.clone(), gate).unwrap();
            let step = |at: usize| steps.clone().narrow(1, at, 1);
            let none = Affine::identity_like(&step(0));
            // In pairs first: composition is associative.
            let pair = |at: usize| match at + 1 < t {
                true => step(at).then(step(at + 1)),
                false => step(at),
            };
            let whole = (0..t)
                .step_by(2)
                .fold(none, |before, at| before.then(pair(at)));
            let composed = whole.apply(h0.clone().unsqueeze_dim(1)).squeeze_dim(1);
            // A graph is differentiated once.
            let again = coefficients(k.clone(), gate).unwrap();
            let (_, linear) = linear_scan(again.a, again.b, sequence(), options).unwrap();
            for (form, last) in [("composed", composed), ("scanned", linear)] {
                let found = slopes(last);
                for ((what, found), expected) in ["h", "k", "h0"].iter().zip(&found).zip(&expected)
                {
                    let what = format!("{name} {} {form} {what}", gate.name());
                    // Each of up to nine steps rounds a few numbers up to 3, and the slope of √ is up to 4 here.
                    assert_close(&what, found, expected, 2e-5);
                }
            }
        }
    }
}

#[test]
fn inputs_that_do_not_divide_are_refused() {
    for (_, device) in devices() {
        let k = random([1, 2, 7], &device);
        assert!(coefficients(k, Gate::Sigmoid).is_err());
    }
}
