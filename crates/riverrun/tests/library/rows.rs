//! The operations on rows, norms and cross-entropy, on tensors: results and gradients against the float64 oracles,
//! refusals.

use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};
use riverrun::Error;
use riverrun::check::{NormKind, NormSpec, add_norm, norm};
use riverrun::nn::{LayerNormConfig, RmsNormConfig};
use riverrun::ops::{self, cross_entropy};
use riverrun_testkit::{loss, norm};

use crate::common::{assert_close, devices, numbers};

/// f32: some tens of roundings of numbers near 1.
const NEAR: f64 = 4e-6;

fn random<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::random(shape, Distribution::Uniform(-2.0, 2.0), device).require_grad()
}

fn spec(kind: NormKind) -> NormSpec {
    NormSpec {
        kind,
        epsilon: 1e-5,
    }
}

fn check_norm(name: &str, device: &Device, kind: NormKind, offset: bool) {
    let (spec, shape, dim) = (spec(kind), [3, 5, 36], 36);
    let (x, gamma) = (random(shape, device), random([dim], device));
    let beta = offset.then(|| random([dim], device));
    let d_y = random(shape, device).detach();
    let y = norm(x.clone(), gamma.clone(), beta.clone(), spec).expect("shapes that fit");
    let grads = (y.clone() * d_y.clone()).sum().backward();

    let (xv, gv) = (numbers(x.clone()), numbers(gamma.clone()));
    let bv = beta.clone().map(numbers);
    let truth = norm::oracle::forward(&spec, &xv, &gv, bv.as_deref());
    let d = norm::oracle::backward(&spec, &xv, &gv, &numbers(d_y), None);
    let close = |what: &str, found: Vec<f64>, expected: &[f64]| {
        assert_close(&format!("{name} {kind:?} {what}"), &found, expected, NEAR);
    };
    close("y", numbers(y), &truth);
    close("d_x", numbers(x.grad(&grads).expect("a gradient")), &d.d_x);
    let d_gamma = numbers(gamma.grad(&grads).expect("a gradient"));
    close("d_gamma", d_gamma, &d.d_gamma);
    if let Some(beta) = beta {
        let d_beta = numbers(beta.grad(&grads).expect("a gradient"));
        close("d_beta", d_beta, &d.d_beta);
    }
}

#[test]
fn norms_are_those_of_the_oracle() {
    for (name, device) in devices() {
        for (kind, offset) in [
            (NormKind::Rms, false),
            (NormKind::Layer, false),
            (NormKind::Layer, true),
        ] {
            check_norm(&name, &device.clone().autodiff(), kind, offset);
        }
        let checkpointing = device.autodiff().gradient_checkpointing();
        check_norm(&name, &checkpointing, NormKind::Layer, true);
    }
}

#[test]
fn a_sum_and_its_norm_both_have_gradients() {
    for (name, device) in devices() {
        let device = device.autodiff();
        let (spec, shape, dim) = (spec(NormKind::Rms), [7, 20], 20);
        let (x, residual) = (random(shape, &device), random(shape, &device));
        let gamma = random([dim], &device);
        let (d_y, d_sum) = (
            random(shape, &device).detach(),
            random(shape, &device).detach(),
        );
        // Both results used; the sum alone; the norm alone.
        for (by_y, by_sum) in [(1.0, 1.0), (0.0, 1.0), (1.0, 0.0)] {
            let (y, sum) =
                ops::add_rms_norm(x.clone(), residual.clone(), gamma.clone(), 1e-5).unwrap();
            let mut loss = Tensor::zeros([1], &device);
            if by_y != 0.0 {
                loss = loss + (y * d_y.clone()).sum();
            }
            if by_sum != 0.0 {
                loss = loss + (sum.clone() * d_sum.clone()).sum();
            }
            let grads = loss.backward();
            let scaled = |x: &Tensor<2>, by: f64| -> Vec<f64> {
                numbers(x.clone()).into_iter().map(|x| x * by).collect()
            };
            let truth = norm::oracle::backward(
                &spec,
                &numbers(sum),
                &numbers(gamma.clone()),
                &scaled(&d_y, by_y),
                Some(&scaled(&d_sum, by_sum)),
            );
            for (what, tensor) in [("d_x", &x), ("d_residual", &residual)] {
                let found = numbers(tensor.grad(&grads).expect("a gradient"));
                assert_close(&format!("{name} {what}"), &found, &truth.d_x, NEAR);
            }
        }
    }
}

#[test]
fn layers_are_those_of_burn() {
    for (name, device) in devices() {
        let device = device.autodiff();
        let x: Tensor<3> = random([2, 4, 24], &device);
        let found = RmsNormConfig::new(24).init(&device).forward(x.clone());
        let expected = burn::nn::RmsNormConfig::new(24).init(&device);
        let expected = numbers(expected.forward(x.clone()));
        assert_close(&format!("{name} rms"), &numbers(found), &expected, NEAR);
        let found = LayerNormConfig::new(24).init(&device).forward(x.clone());
        let expected = burn::nn::LayerNormConfig::new(24).init(&device);
        let expected = numbers(expected.forward(x));
        assert_close(&format!("{name} layer"), &numbers(found), &expected, NEAR);
    }
}

fn targets(data: &[i32], device: &Device) -> Tensor<1, Int> {
    Tensor::from_data(TensorData::new(data.to_vec(), [data.len()]), device)
}

#[test]
fn cross_entropy_is_that_of_the_oracle() {
    for (name, device) in devices() {
        let device = device.autodiff();
        let x = random([6, 67], &device);
        let labels = [3, 66, -100, 0, 12, 65];
        let loss = ops::cross_entropy(x.clone(), targets(&labels, &device)).unwrap();
        let grads = loss.clone().mul_scalar(3.0).backward();
        let (xv, labels) = (numbers(x.clone()), labels.map(i64::from));
        let truth = loss::oracle::forward(&xv, 67, &labels);
        assert_close(&format!("{name} loss"), &numbers(loss), &[truth.loss], NEAR);
        let truth = loss::oracle::backward(&xv, 67, &labels, 3.0);
        let found = numbers(x.grad(&grads).expect("a gradient"));
        for (found, truth) in found.iter().zip(&truth) {
            assert!((found - truth).abs() < 1e-6, "{name}: {found}, not {truth}");
        }
    }
}

#[test]
fn what_does_not_fit_is_an_error_that_names_both_sides() {
    for (_, device) in devices() {
        let device = device.autodiff();
        let x: Tensor<2> = random([4, 6], &device);
        let shape = |what, expected: &[usize], found: &[usize]| {
            format!("{what}: expected {expected:?}, found {found:?}")
        };
        let refusal = |result: Result<_, Error>| match result {
            Ok(_) => panic!("taken as it is"),
            Err(Error::Shape {
                what,
                expected,
                found,
            }) => shape(what, &expected, &found),
            Err(other) => panic!("{other}"),
        };
        let spec = spec(NormKind::Layer);
        let short: Tensor<1> = random([5], &device);
        let gamma: Tensor<1> = random([6], &device);
        let found = norm(x.clone(), short.clone(), None, spec);
        assert_eq!(refusal(found.map(drop)), shape("gamma", &[6], &[5]));
        let found = norm(x.clone(), gamma.clone(), Some(short), spec);
        assert_eq!(refusal(found.map(drop)), shape("beta", &[6], &[5]));
        let found = add_norm(x.clone(), random([3, 6], &device), gamma, None, spec);
        let found = refusal(found.map(drop));
        assert_eq!(found, shape("residual", &[4, 6], &[3, 6]));
        let found = cross_entropy(x, targets(&[0, 1, 2], &device));
        assert_eq!(refusal(found.map(drop)), shape("targets", &[4], &[3]));
    }
}
