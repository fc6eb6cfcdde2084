//! The operations on tensors: gradients against the float64 oracle, errors, empty sequences, checkpointing.

mod common;

use burn::tensor::{Bool, Device, Distribution, Tensor, TensorData};
use common::{assert_close, devices, numbers};
use riverrun::Error;
use riverrun::kernels::recurrence::{Gate, Problem, Shape, oracle};
use riverrun::ops::{Scan, linear_scan, try_gated_scan, try_linear_scan};

fn random<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::random(shape, Distribution::Uniform(-0.95, 0.95), device)
}

/// Runs `linear_scan` with everything it takes, and holds every gradient against the oracle.
fn check_linear_scan(name: &str, device: &Device, reverse: bool) {
    let (b, t, d) = (2, 70, 12);
    let a = random([b, t, d], device).require_grad();
    let x = random([b, t, d], device).require_grad();
    let h0 = random([b, d], device).require_grad();
    let (d_h, d_last) = (random([b, t, d], device), random([b, d], device));
    let mask: Vec<bool> = (0..b * t).map(|n| n % 17 == 11).collect();
    let reset = Tensor::<2, Bool>::from_data(TensorData::new(mask.clone(), [b, t]), device);
    let scan = Scan::default().with_initial(h0.clone()).with_reset(reset);
    let scan = if reverse { scan.reversed() } else { scan };
    let (h, last) = try_linear_scan(a.clone(), x.clone(), scan).expect("shapes that fit");
    let grads = ((h.clone() * d_h.clone()).sum() + (last * d_last.clone()).sum()).backward();

    let problem = Problem::new(Shape::new(b, t, d), Gate::Raw).reversed(reverse);
    let (av, xv, h0v) = (numbers(a.clone()), numbers(x.clone()), numbers(h0.clone()));
    let inputs: [&[f64]; 2] = [&av, &xv];
    let truth = oracle::forward(&problem, &inputs, Some(&h0v), Some(&mask)).expect("a problem");
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
    close("h", numbers(h), &truth);
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
        let (_, last) = try_linear_scan(a.clone(), b.clone(), Scan::default()).expect("fits");
        let through_last = a.grad(&last.sum().backward()).expect("a gradient");
        let h = linear_scan(a.clone(), b, Scan::default());
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
        let scan = Scan::default().with_initial(h0.clone());
        let (h, last) = try_linear_scan(empty.clone(), empty, scan).expect("fits");
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
        let error = try_linear_scan(
            a.clone(),
            Tensor::zeros([2, 4, 5], &device),
            Scan::default(),
        );
        let Err(Error::Shape {
            expected, found, ..
        }) = error
        else {
            panic!("{error:?}")
        };
        assert_eq!((expected, found), (vec![2, 4, 3], vec![2, 4, 5]));
        let scan = Scan::default().with_initial(Tensor::zeros([2, 4], &device));
        assert!(matches!(
            try_linear_scan(a.clone(), a.clone(), scan),
            Err(Error::Shape { .. })
        ));
        let odd = try_gated_scan(
            a,
            Gate::MinGru {
                candidate: Default::default(),
            },
            Scan::default(),
        );
        assert!(matches!(odd, Err(Error::Shape { .. })));
    }
}
