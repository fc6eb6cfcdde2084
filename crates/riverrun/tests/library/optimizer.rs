//! Steps of AdamW on tensors, one after the other, against the formulas in float64.

use burn::tensor::{Device, Tensor};
use riverrun::training::{
    AdamwStep, AdamwTensors, FlatTensor, adamw, adamw_numbers, from_flat, square_sum,
};

use crate::common::{assert_close, devices, numbers};
use crate::random;

fn step(time: u32) -> AdamwStep {
    AdamwStep {
        lr: 1e-2,
        beta_1: 0.9,
        beta_2: 0.99,
        epsilon: 1e-8,
        weight_decay: 0.1,
        time,
    }
}

/// A parameter with its moments in float64.
struct Exact {
    p: Vec<f64>,
    m: Vec<f64>,
    v: Vec<f64>,
}

impl Exact {
    fn step(&mut self, gradient: &[f64], decays: bool, time: i32) {
        let step = step(time as u32);
        let keep = if decays {
            1.0 - step.lr * step.weight_decay
        } else {
            1.0
        };
        for (i, g) in gradient.iter().enumerate() {
            self.m[i] = step.beta_1 * self.m[i] + (1.0 - step.beta_1) * g;
            self.v[i] = step.beta_2 * self.v[i] + (1.0 - step.beta_2) * g * g;
            let first = self.m[i] / (1.0 - step.beta_1.powi(time));
            let second = self.v[i] / (1.0 - step.beta_2.powi(time));
            self.p[i] = self.p[i] * keep - step.lr * first / (second.sqrt() + step.epsilon);
        }
    }
}

/// A vector in memory that was made for it without numbers, where NaN was before: devices may pad such a vector.
fn in_used_memory(vector: &Tensor<1>) -> Tensor<1> {
    let ([n], device) = (vector.dims(), vector.device());
    drop(numbers(Tensor::<1>::full([n + 96], f32::NAN, &device)));
    let place = FlatTensor::new(Tensor::<1>::empty([n], &device), 0, 0).unwrap();
    let copied = from_flat(vec![place], vector).unwrap().remove(0);
    copied.into_tensor()
}

fn check(name: &str, device: &Device, zeros: fn(usize, &Device) -> Tensor<1>) {
    let sizes = [4099, 77];
    let parameters = sizes.map(|n| random([n], device));
    let mut exact = parameters.each_ref().map(|p: &Tensor<1>| {
        let p = numbers(p.clone());
        let (m, v) = (vec![0.0; p.len()], vec![0.0; p.len()]);
        Exact { p, m, v }
    });
    let mut pieces = parameters.map(|p| {
        let n = p.dims()[0];
        Some([p, zeros(n, device), zeros(n, device)])
    });
    for time in 1..=4 {
        let gradients = sizes.map(|n| random([n], device) * f64::from(time));
        let gradients = gradients.each_ref().map(in_used_memory);
        let mut exact_squares = 0.0;
        for (n, exact) in exact.iter_mut().enumerate() {
            exact_squares += numbers(gradients[n].clone())
                .iter()
                .map(|g| g * g)
                .sum::<f64>();
            exact.step(&numbers(gradients[n].clone()), n == 0, time as i32);
        }
        let tensors: Vec<AdamwTensors> = pieces
            .iter_mut()
            .zip(gradients)
            .enumerate()
            .map(|(n, (piece, gradient))| {
                let [p, m, v] = piece.take().expect("it comes back");
                AdamwTensors::new(p, gradient, [m, v], n == 0).unwrap()
            })
            .collect();
        // Of clones, which are gone before the update.
        let squares = numbers(square_sum(&tensors.clone()).unwrap());
        let close = |found: &[f64], expected| {
            assert_close(&format!("{name} squares"), found, &[expected], 1e-5)
        };
        close(&squares, exact_squares);
        let factor = Tensor::<1>::ones([1], device);
        let updated = adamw(tensors, factor, adamw_numbers(step(time).numbers(), device)).unwrap();
        for (piece, updated) in pieces.iter_mut().zip(updated) {
            let (p, [m, v], _) = updated.into_tensors::<1>();
            *piece = Some([p, m, v]);
        }
    }
    for (piece, exact) in pieces.into_iter().zip(exact) {
        let [p, m, v] = piece.expect("it came back");
        for (what, found, exact) in [("p", p, exact.p), ("m", m, exact.m), ("v", v, exact.v)] {
            // Some eps a step of numbers up to 16.
            assert_close(&format!("{name} {what}"), &numbers(found), &exact, 2e-5);
        }
    }
}

#[test]
fn several_steps_are_those_of_the_formulas() {
    for (name, device) in devices() {
        check(&format!("{name}, sent zeros"), &device, |n, device| {
            Tensor::from_data(burn::tensor::TensorData::zeros::<f32, _>([n]), device)
        });
        check(&format!("{name}, made zeros"), &device, |n, device| {
            Tensor::zeros([n], device)
        });
    }
}
