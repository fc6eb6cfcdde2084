//! Operations around Griffin's recurrence and attention: long convolutions, the gates of the RG-LRU, GELU and SiLU as gates, rotary
//! positions.

use burn::tensor::{Bool, Tensor, TensorData};
use riverrun::Sequence;
use riverrun::ops::{geglu, gelu, rg_lru_gates, rotary, short_convolution, silu, swiglu};
use riverrun_testkit::rg_lru::{Problem, oracle};

use crate::common::{assert_close, devices, numbers};
use crate::random;

/// A few roundings of f32 in each of up to 120 terms below 1.
const TOLERANCE: f64 = 1e-4;

#[test]
fn the_gates_and_their_gradients_are_those_of_the_oracle() {
    for (name, device) in devices() {
        let device = device.autodiff();
        for (n, (steps, dim)) in [(1, 1), (40, 20), (7, 8)].into_iter().enumerate() {
            let problem = Problem {
                batch: 3,
                steps,
                dim,
                forget: n != 0,
                first: n != 1,
            };
            let wide = || random([3, steps, dim], &device).require_grad();
            let (p, q, x) = (wide(), wide(), wide());
            let (bias, rate) = (random([2 * dim], &device), random([dim], &device).abs());
            let (bias, rate) = (bias.detach().require_grad(), rate.detach().require_grad());
            let reset: Vec<bool> = (0..3 * steps).map(|i| i % 5 == 2).collect();
            let mask = TensorData::new(reset.clone(), [3, steps]);
            let mask = problem
                .forget
                .then(|| Tensor::<2, Bool>::from_data(mask, &device));
            let inputs = [p.clone(), q.clone(), x.clone()];
            let gates = rg_lru_gates(
                inputs,
                Some(bias.clone()),
                rate.clone(),
                (problem.first, mask),
            );
            let gates = gates.expect("shapes that fit");
            let d = random([3, steps, 2 * dim], &device);
            let grads = (gates.clone() * d.clone()).sum().backward();
            let case = oracle::Inputs {
                p: numbers(p.clone()),
                q: numbers(q.clone()),
                x: numbers(x.clone()),
                bias: numbers(bias.clone()),
                rate: numbers(rate.clone()),
                reset,
            };
            let expected = case.backward(&problem, &numbers(d));
            let hold = |what: &str, found: Vec<f64>, expected: &[f64]| {
                assert_close(&format!("{name} {what}"), &found, expected, TOLERANCE);
            };
            hold("gates", numbers(gates), &case.forward(&problem));
            for (what, leaf, expected) in [
                ("p", p, &expected.p),
                ("q", q, &expected.q),
                ("x", x, &expected.x),
            ] {
                hold(
                    what,
                    numbers(leaf.grad(&grads).expect("a gradient")),
                    expected,
                );
            }
            for (what, leaf, expected) in [
                ("bias", bias, &expected.bias),
                ("rate", rate, &expected.rate),
            ] {
                hold(
                    what,
                    numbers(leaf.grad(&grads).expect("a gradient")),
                    expected,
                );
            }
        }
    }
}

#[test]
fn the_oracle_has_the_slopes_of_the_gates() {
    let problem = Problem {
        batch: 2,
        steps: 3,
        dim: 2,
        forget: true,
        first: true,
    };
    let data = |n: usize, seed: f64| -> Vec<f64> {
        (0..n).map(|i| (seed + 1.7 * i as f64).sin()).collect()
    };
    let inputs = oracle::Inputs {
        p: data(12, 1.0),
        q: data(12, 2.0),
        x: data(12, 3.0),
        bias: data(4, 4.0),
        rate: data(2, 5.0),
        reset: vec![false, true, false, false, false, true],
    };
    let d_out = data(24, 6.0);
    let loss = |inputs: &oracle::Inputs| -> f64 {
        let out = inputs.forward(&problem);
        out.iter().zip(&d_out).map(|(y, d)| y * d).sum()
    };
    let d = inputs.backward(&problem, &d_out);
    type Field = fn(&mut oracle::Inputs) -> &mut Vec<f64>;
    let fields: [(Field, &[f64]); 5] = [
        (|inputs| &mut inputs.p, &d.p),
        (|inputs| &mut inputs.q, &d.q),
        (|inputs| &mut inputs.x, &d.x),
        (|inputs| &mut inputs.bias, &d.bias),
        (|inputs| &mut inputs.rate, &d.rate),
    ];
    for (field, expected) in fields {
        for (i, expected) in expected.iter().enumerate() {
            let moved = |by: f64| {
                let mut inputs = inputs.clone();
                field(&mut inputs)[i] += by;
                loss(&inputs)
            };
            let slope = (moved(1e-5) - moved(-1e-5)) / 2e-5;
            assert!((slope - expected).abs() < 1e-6, "{slope} {expected}");
        }
    }
}

#[test]
fn a_gate_is_a_product() {
    type Gate = fn(Tensor<3>, Tensor<3>) -> Result<Tensor<3>, riverrun::Error>;
    type Function = fn(Tensor<3>) -> Result<Tensor<3>, riverrun::Error>;
    let functions: [(Gate, Function); 2] = [(geglu, gelu), (swiglu, silu)];
    let all = devices()
        .into_iter()
        .flat_map(|device| functions.map(|f| (device.clone(), f)));
    for ((name, device), (gated, function)) in all {
        let device = device.autodiff();
        let leaf = || random([2, 5, 33], &device).require_grad();
        let (gate, x, d) = (leaf(), leaf(), random([2, 5, 33], &device));
        let y = gated(gate.clone(), x.clone()).expect("shapes that fit");
        let product = function(gate.clone()).unwrap() * x.clone();
        assert_close(
            &name,
            &numbers(y.clone()),
            &numbers(product.clone()),
            TOLERANCE,
        );
        let found = (y * d.clone()).sum().backward();
        let expected = (product * d).sum().backward();
        for leaf in [gate, x] {
            let [found, expected] =
                [&found, &expected].map(|grads| numbers(leaf.grad(grads).expect("a gradient")));
            assert_close(&name, &found, &expected, TOLERANCE);
        }
        let other = random([2, 5, 32], &device);
        assert!(gated(leaf(), other).is_err());
    }
}

#[test]
fn turning_back_undoes_a_turn() {
    for (name, device) in devices() {
        let device = device.autodiff();
        let x = random([2, 9, 3, 10], &device).require_grad();
        let angle = random([9, 3], &device).detach();
        let angles = || [angle.clone().cos(), angle.clone().sin()];
        let y = rotary(x.clone(), angles(), 2).expect("shapes that fit");
        // The length of each pair stays, so the gradient of half the squares is `x` itself.
        let half = (y.clone() * y.clone()).sum() * 0.5;
        let d_x = x.grad(&half.backward()).expect("a gradient");
        assert_close(&name, &numbers(d_x), &numbers(x.clone()), TOLERANCE);
        let kept = |y: Tensor<4>| numbers(y.narrow(2, 2, 1));
        assert_eq!(kept(y.clone()), kept(x.clone()), "{name}");
        let first = |y: &Tensor<4>| numbers(y.clone().slice([0..1, 3..4, 1..2, 0..6]));
        let (x_of, y_of) = (first(&x), first(&y));
        let angle = numbers(angle.clone().slice([3..4, 0..3]));
        for i in 0..3 {
            let (a, b) = (x_of[i], x_of[i + 3]);
            let expected = [
                a * angle[i].cos() - b * angle[i].sin(),
                b * angle[i].cos() + a * angle[i].sin(),
            ];
            assert_close(&name, &[y_of[i], y_of[i + 3]], &expected, TOLERANCE);
        }
        assert!(rotary(x.clone(), angles(), 4).is_err());
    }
}

#[test]
fn a_convolution_of_many_weights_is_its_sum() {
    const TAPS: usize = 20;
    for (name, device) in devices() {
        let device = device.autodiff();
        let x = random([1, 50, 5], &device).require_grad();
        let weight = random([TAPS, 5], &device).require_grad();
        let run = |weight| short_convolution(x.clone(), weight, None, Sequence::new());
        let (y, _) = run(weight.clone()).expect("shapes that fit");
        let (xs, ws) = (numbers(x.clone()), numbers(weight.clone()));
        let (mut expected, mut d_x) = (vec![0.0; 250], vec![0.0; 250]);
        let mut d_weight = vec![0.0; TAPS * 5];
        for n in 0..250 {
            let (t, d) = (n / 5, n % 5);
            for back in 0..TAPS.min(t + 1) {
                let (input, tap) = (n - back * 5, (TAPS - 1 - back) * 5 + d);
                expected[n] += ws[tap] * xs[input];
                d_x[input] += ws[tap];
                d_weight[tap] += xs[input];
            }
        }
        assert_close(&name, &numbers(y.clone()), &expected, TOLERANCE);
        let grads = y.sum().backward();
        let found = numbers(x.grad(&grads).expect("a gradient"));
        assert_close(&name, &found, &d_x, TOLERANCE);
        let found = numbers(weight.grad(&grads).expect("a gradient"));
        assert_close(&name, &found, &d_weight, TOLERANCE);
        // A GPU keeps the window in registers.
        assert_eq!(
            run(random([65, 5], &device)).is_err(),
            name != "cpu",
            "{name}"
        );
    }
}
