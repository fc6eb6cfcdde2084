//! The operations on tensors: gradients against the float64 oracle, errors, empty sequences, checkpointing.

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use riverrun::ops::{
    ScanDirection, ScanOptions, gated_scan, linear_scan, linear_scan_gradients, linear_scan_hvp,
};
use riverrun::training::{
    FlatTensor, add_directions, from_flat, overwrite, refill, refill_int, to_flat,
};
use riverrun::{Error, Sequence};
use riverrun_testkit::recurrence::{Gate, Problem, Shape, hvp, oracle};

use crate::common::{assert_close, devices, numbers};
use crate::random;

/// Runs `linear_scan` with everything it takes, and holds every gradient against the oracle.
fn check_linear_scan(name: &str, device: &Device, reverse: bool) {
    let (b, t, d) = (2, 70, 12);
    let a = random([b, t, d], device).require_grad();
    let x = random([b, t, d], device).require_grad();
    let h0 = random([b, d], device).require_grad();
    let (d_h, d_last) = (random([b, t, d], device), random([b, d], device));
    let mask: Vec<bool> = (0..b * t).map(|n| n % 17 == 11).collect();
    let reset = Tensor::<2, Bool>::from_data(TensorData::new(mask.clone(), [b, t]), device);
    let sequence = Sequence::new().with_state(h0.clone()).with_reset(reset);
    let options = ScanOptions::new().with_reverse(reverse);
    let (h, last) = linear_scan(a.clone(), x.clone(), sequence, options).unwrap();
    let grads = ((h.clone() * d_h.clone()).sum() + (last * d_last.clone()).sum()).backward();

    let problem = Problem::new(Shape::new(b, t, d), Gate::Raw).reversed(reverse);
    let (av, xv, h0v) = (numbers(a.clone()), numbers(x.clone()), numbers(h0.clone()));
    let inputs: [&[f64]; 2] = [&av, &xv];
    let reference = oracle::forward(&problem, &inputs, Some(&h0v), Some(&mask)).expect("a problem");
    let (d_hv, d_lastv) = (numbers(d_h), numbers(d_last));
    let gradients = oracle::backward(
        &problem,
        &inputs,
        Some(&h0v),
        Some(&mask),
        &d_hv,
        Some(&d_lastv),
    )
    .expect("a problem");
    // f32 with |a| < 1: errors of some eps, with a margin of about ten.
    let close = |what: &str, found: Vec<f64>, expected: &[f64]| {
        assert_close(
            &format!("{name} reverse {reverse} {what}"),
            &found,
            expected,
            2e-6,
        );
    };
    close("h", numbers(h), &reference);
    close(
        "d_a",
        numbers(a.grad(&grads).expect("a gradient")),
        &gradients.inputs[0],
    );
    close(
        "d_b",
        numbers(x.grad(&grads).expect("a gradient")),
        &gradients.inputs[1],
    );
    close(
        "d_h0",
        numbers(h0.grad(&grads).expect("a gradient")),
        &gradients.h0,
    );
}

#[test]
fn gradients_are_those_of_the_oracle() {
    for (name, device) in devices() {
        for reverse in [false, true] {
            check_linear_scan(&name, &device.clone().autodiff(), reverse);
        }
    }
}

#[test]
fn gradient_checkpointing_changes_nothing() {
    for (name, device) in devices() {
        let device = device.autodiff().gradient_checkpointing();
        check_linear_scan(&format!("{name}, checkpointed,"), &device, false);
    }
}

#[test]
fn only_the_last_state_may_be_differentiated() {
    for (name, device) in devices() {
        let device = device.autodiff();
        let a = random([1, 5, 3], &device).require_grad();
        let b = random([1, 5, 3], &device);
        let (_, last) =
            linear_scan(a.clone(), b.clone(), Sequence::new(), ScanOptions::new()).unwrap();
        let through_last = a.grad(&last.sum().backward()).expect("a gradient");
        let (h, _) = linear_scan(a.clone(), b, Sequence::new(), ScanOptions::new()).unwrap();
        let through_h = a
            .grad(&h.narrow(1, 4, 1).sum().backward())
            .expect("a gradient");
        assert_close(&name, &numbers(through_last), &numbers(through_h), 1e-6);
    }
}

#[test]
fn no_steps_give_back_the_initial_state() {
    for (name, device) in devices() {
        let device = device.autodiff();
        let empty = Tensor::<3>::zeros([2, 0, 3], &device);
        let h0 = random([2, 3], &device).require_grad();
        let sequence = Sequence::new().with_state(h0.clone());
        let (h, last) = linear_scan(empty.clone(), empty, sequence, ScanOptions::new()).unwrap();
        assert_eq!(h.dims(), [2, 0, 3], "{name}");
        let grads = last.clone().sum().backward();
        assert_close(&name, &numbers(last), &numbers(h0.clone()), 0.0);
        assert_close(
            &name,
            &numbers(h0.grad(&grads).expect("a gradient")),
            &[1.0; 6],
            0.0,
        );
    }
}

#[test]
fn what_does_not_fit_is_an_error_that_names_both_sides() {
    for (_, device) in devices() {
        let a = Tensor::<3>::zeros([2, 4, 3], &device);
        let error = linear_scan(
            a.clone(),
            Tensor::zeros([2, 4, 5], &device),
            Sequence::new(),
            ScanOptions::new(),
        );
        let Err(Error::Shape {
            expected, found, ..
        }) = error
        else {
            panic!("{error:?}")
        };
        assert_eq!((expected, found), (vec![2, 4, 3], vec![2, 4, 5]));
        let sequence = Sequence::new().with_state(Tensor::zeros([2, 4], &device));
        assert!(matches!(
            linear_scan(a.clone(), a.clone(), sequence, ScanOptions::new()),
            Err(Error::Shape { .. })
        ));
        let odd = gated_scan(
            a,
            Gate::MinGru {
                candidate: Default::default(),
            },
            Sequence::new(),
            ScanOptions::new(),
        );
        assert!(matches!(odd, Err(Error::Shape { .. })));
    }
}

/// Everything that the backward pass of a scan takes.
struct Point {
    a: Tensor<3>,
    b: Tensor<3>,
    h0: Tensor<2>,
    d_h: Tensor<3>,
    d_h_last: Tensor<2>,
}

impl Point {
    fn random(shape: [usize; 3], device: &Device) -> Self {
        let state = [shape[0], shape[2]];
        Self {
            a: random(shape, device),
            b: random(shape, device),
            h0: random(state, device),
            d_h: random(shape, device),
            d_h_last: random(state, device),
        }
    }

    fn direction(&self) -> ScanDirection {
        ScanDirection::new(self.a.clone(), self.b.clone())
            .with_h0(self.h0.clone())
            .with_d_h(self.d_h.clone())
            .with_d_h_last(self.d_h_last.clone())
    }

    fn numbers(&self) -> [Vec<f64>; 5] {
        let (a, b, d_h) = (self.a.clone(), self.b.clone(), self.d_h.clone());
        let (h0, d_h_last) = (self.h0.clone(), self.d_h_last.clone());
        [
            numbers(a),
            numbers(b),
            numbers(h0),
            numbers(d_h),
            numbers(d_h_last),
        ]
    }
}

fn point([a, b, h0, d_h, d_h_last]: &[Vec<f64>; 5]) -> hvp::Point<'_, f64> {
    hvp::Point {
        a,
        b,
        h0: Some(h0),
        d_h,
        d_h_last: Some(d_h_last),
    }
}

#[test]
fn the_scan_has_gradients_and_second_derivatives_as_tensors() {
    for (name, device) in devices() {
        for (steps, reverse) in [(0, false), (1, false), (1, true), (40, false), (40, true)] {
            let (b, d) = (2, 6);
            let shape = [b, steps, d];
            let (at, along) = (Point::random(shape, &device), Point::random(shape, &device));
            let mask: Vec<bool> = (0..b * steps).map(|n| n % 17 == 0 || n % 11 == 5).collect();
            let reset =
                Tensor::<2, Bool>::from_data(TensorData::new(mask.clone(), [b, steps]), &device);
            let sequence = Sequence::new().with_state(at.h0.clone()).with_reset(reset);
            let options = ScanOptions::new().with_reverse(reverse);
            let last = Some(at.d_h_last.clone());
            let (x, y, g) = (at.a.clone(), at.b.clone(), at.d_h.clone());
            let first = linear_scan_gradients(
                x.clone(),
                y.clone(),
                sequence.clone(),
                options,
                g.clone(),
                last.clone(),
            )
            .unwrap();
            let second =
                linear_scan_hvp(x, y, sequence, options, g, last, along.direction()).unwrap();

            let problem = Problem::new(Shape::new(b, steps, d), Gate::Raw).reversed(reverse);
            let (from, to) = (at.numbers(), along.numbers());
            let gradients = oracle::backward(
                &problem,
                &[&from[0], &from[1]],
                Some(&from[2]),
                Some(&mask),
                &from[3],
                Some(&from[4]),
            )
            .expect("a problem");
            let moved =
                hvp::oracle(&problem, Some(&mask), &point(&from), &point(&to)).expect("a problem");
            let close = |what: &str, found: Vec<f64>, expected: &[f64]| {
                let what = format!("{name} T {steps} reverse {reverse} {what}");
                assert_close(&what, &found, expected, 4e-6);
            };
            close("d_a", numbers(first.a), &gradients.inputs[0]);
            close("d_b", numbers(first.b), &gradients.inputs[1]);
            close("d_h0", numbers(first.h0), &gradients.h0);
            close("moved d_a", numbers(second.a), &moved.a);
            close("moved d_b", numbers(second.b), &moved.b);
            close("moved d_h0", numbers(second.h0), &moved.h0);
        }
    }
}

#[test]
fn a_loss_of_gradients_is_differentiated_as_any_other() {
    for (name, device) in devices() {
        let device = device.autodiff();
        let shape = [2, 30, 5];
        let (at, along) = (Point::random(shape, &device), Point::random(shape, &device));
        let (a, b) = (at.a.require_grad(), at.b.require_grad());
        let h0 = at.h0.require_grad();
        let sequence = || Sequence::new().with_state(h0.clone());
        let options = ScanOptions::new();
        let (g, last) = (at.d_h, Some(at.d_h_last));
        let (x, y, d_h) = (a.clone(), b.clone(), g.clone());
        let gradients =
            linear_scan_gradients(x, y, sequence(), options, d_h, last.clone()).unwrap();
        // <v, gradient> has the gradient H v, for the Hessian is symmetric.
        let loss = (gradients.a * along.a.clone()).sum()
            + (gradients.b * along.b.clone()).sum()
            + (gradients.h0 * along.h0.clone()).sum();
        let grads = loss.backward();
        let direction =
            ScanDirection::new(along.a.clone(), along.b.clone()).with_h0(along.h0.clone());
        let (x, y) = (a.clone(), b.clone());
        let product = linear_scan_hvp(x, y, sequence(), options, g, last, direction).unwrap();
        let close = |what: &str, found: Vec<f64>, expected: Vec<f64>| {
            assert_close(&format!("{name} {what}"), &found, &expected, 4e-6);
        };
        close(
            "a",
            numbers(a.grad(&grads).expect("a gradient")),
            numbers(product.a),
        );
        close(
            "b",
            numbers(b.grad(&grads).expect("a gradient")),
            numbers(product.b),
        );
        close(
            "h0",
            numbers(h0.grad(&grads).expect("a gradient")),
            numbers(product.h0),
        );
    }
}

#[test]
fn directions_that_do_not_fit_are_errors() {
    for (_, device) in devices() {
        let at = Point::random([2, 4, 3], &device);
        let run = |along: ScanDirection, d_h: Tensor<3>| {
            linear_scan_hvp(
                at.a.clone(),
                at.b.clone(),
                Sequence::new(),
                ScanOptions::new(),
                d_h,
                None,
                along,
            )
        };
        assert!(run(at.direction(), at.d_h.clone()).is_ok());
        let short = Tensor::zeros([2, 3, 3], &device);
        let error = run(at.direction(), short.clone());
        assert!(matches!(error, Err(Error::Shape { what: "d_h", .. })));
        let mut along = at.direction();
        along.b = short;
        assert!(matches!(
            run(along, at.d_h.clone()),
            Err(Error::Shape {
                what: "the direction of b",
                ..
            })
        ));
    }
}

#[test]
fn a_tensor_is_refilled_with_other_numbers() {
    for (name, device) in devices() {
        let tensor = Tensor::<2>::zeros([2, 3], &device);
        let data = TensorData::from([[1.0f64, -2.0, 3.5], [0.25, 5.0, -6.0]]);
        let tensor = refill(tensor, data.clone()).unwrap();
        assert_eq!(
            numbers(tensor.clone()),
            [1.0, -2.0, 3.5, 0.25, 5.0, -6.0],
            "{name}"
        );
        let wrong = refill(tensor, TensorData::from([1.0f32, 2.0]));
        assert!(
            matches!(wrong, Err(Error::Shape { what: "data", .. })),
            "{name}"
        );

        let integers = Tensor::<1, Int>::from_data(TensorData::from([1i32, 2, 3]), &device);
        let integers = refill_int(integers, TensorData::from([7i64, -8, 9])).unwrap();
        if !riverrun::device::is_cpu(&device) {
            let clone = integers.clone();
            let data = || TensorData::from([7i64, -8, 9]);
            let shared = refill_int(integers.clone(), data());
            assert!(matches!(shared, Err(Error::Shared { .. })), "{name}");
            drop(clone);
        }
        let found: Vec<i64> = integers.into_data().iter::<i64>().collect();
        assert_eq!(found, [7, -8, 9], "{name}");
    }
}

#[test]
fn a_tensor_is_overwritten_by_another() {
    for (name, device) in devices() {
        let tensor = Tensor::<2>::zeros([2, 3], &device);
        let other = Tensor::<2>::from_data([[1.0, -2.0], [3.5, 0.25], [5.0, -6.0]], &device);
        // Not contiguous, and used on.
        let tensor = overwrite(tensor, other.clone().transpose()).unwrap();
        let expected = [1.0, 3.5, 5.0, -2.0, 0.25, -6.0];
        assert_eq!(numbers(tensor.clone()), expected, "{name}");
        assert_eq!(numbers(other), [1.0, -2.0, 3.5, 0.25, 5.0, -6.0], "{name}");
        let wrong = overwrite(tensor, Tensor::zeros([3, 2], &device));
        assert!(
            matches!(wrong, Err(Error::Shape { what: "with", .. })),
            "{name}"
        );
        let empty = overwrite(
            Tensor::<2>::zeros([0, 3], &device),
            Tensor::zeros([0, 3], &device),
        )
        .unwrap();
        assert_eq!(empty.dims(), [0, 3], "{name}");
    }
}

/// Nine tensors, more than one call of a backend takes, two of them in the second group; a view that is not contiguous.
#[test]
fn sums_of_directions_are_added_and_vectors_are_copied() {
    for (name, device) in devices() {
        let one = |n: usize| Tensor::<1>::from_floats([n as f32, 10.0 * n as f32], &device);
        let flat = |n: usize| FlatTensor::new(one(n), 2 * n, n / 7).unwrap();
        let matrix = Tensor::<2>::from_floats([[1.0, 2.0], [3.0, 4.0]], &device).transpose();
        let mut tensors: Vec<FlatTensor> = (0..9).map(flat).collect();
        tensors.push(FlatTensor::new(matrix, 18, 0).unwrap());
        let ramp = Tensor::<1, Int>::arange(0..22, &device).float();
        let directions = [ramp.clone(), ramp.ones_like()];
        let coefficients = Tensor::<2>::from_floats([[1.0, 0.5], [0.0, -1.0]], &device);
        let shared = one(0);
        let first = FlatTensor::new(shared.clone(), 0, 0).unwrap();
        tensors[0] = first.with_kept_memory();
        drop(shared);
        let changed = add_directions(tensors, &directions, coefficients).unwrap();
        let vector = to_flat(&changed, Tensor::zeros([22], &device)).unwrap();
        let mut expected = Vec::new();
        for n in 0..9 {
            for (i, value) in [n as f64, 10.0 * n as f64].into_iter().enumerate() {
                let change = match n / 7 {
                    0 => (2 * n + i) as f64 + 0.5,
                    _ => -1.0,
                };
                expected.push(value + change);
            }
        }
        expected.extend([19.5, 22.5, 22.5, 25.5]);
        assert_eq!(numbers(vector), expected, "{name}");

        let put = from_flat(changed, &directions[0]).unwrap();
        let last = put.into_iter().last().unwrap().into_tensor::<2>();
        assert_eq!(numbers(last), [18.0, 19.0, 20.0, 21.0], "{name}");
    }
}

#[test]
fn vectors_that_do_not_fit_are_errors() {
    let device = devices().remove(0).1;
    let vector = |n: usize| Tensor::<1>::ones([n], &device);
    let tensors = || vec![FlatTensor::new(vector(3), 2, 1).unwrap()];
    let coefficients = |groups, count| Tensor::<2>::ones([groups, count], &device);
    let short = |error: Error| matches!(error, Error::Kernel(_));
    assert!(short(from_flat(tensors(), &vector(4)).unwrap_err()));
    assert!(short(to_flat(&tensors(), vector(4)).unwrap_err()));
    let add = |directions: &[Tensor<1>], coefficients| {
        add_directions(tensors(), directions, coefficients).unwrap_err()
    };
    assert!(short(add(&[vector(4)], coefficients(2, 1))));
    assert!(short(add(&[vector(5)], coefficients(1, 1))));
    let many: Vec<Tensor<1>> = (0..5).map(|_| vector(5)).collect();
    assert!(short(add(&many, coefficients(2, 5))));
    let shape = add(&[vector(5), vector(6)], coefficients(2, 2));
    assert!(matches!(shape, Error::Shape { .. }), "{shape}");
    let shape = add(&[vector(5)], coefficients(2, 2));
    assert!(matches!(shape, Error::Shape { .. }), "{shape}");
    let wide = Tensor::<1>::ones([3], (&device, burn::tensor::DType::F64));
    let dtype = FlatTensor::new(wide, 0, 0).unwrap_err();
    assert!(matches!(dtype, Error::Dtype { .. }), "{dtype}");
    // Nothing to add, and nothing to add to.
    let same = add_directions(tensors(), &[], coefficients(2, 0)).unwrap();
    assert_eq!(same.len(), 1);
    assert!(from_flat(Vec::new(), &vector(0)).unwrap().is_empty());
}
