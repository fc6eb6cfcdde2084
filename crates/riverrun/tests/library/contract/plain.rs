//! Operations without gradients refuse tensors on an autodiff device, on other devices, and of other shapes and dtypes.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use riverrun::Error;
use riverrun::ops::{RunStates, encode_states};
use riverrun::training::{
    AdamwStep, AdamwTensors, FlatTensor, adamw, adamw_numbers, add_directions, clip_factor,
    from_flat, overwrite, refill, refill_int, to_flat,
};

use crate::common::{devices, numbers};

fn on_device<T>(result: Result<T, Error>, what: &str) {
    match result {
        Err(Error::Device { what: found, .. }) => assert_eq!(found, what),
        Err(other) => panic!("{what}: {other}"),
        Ok(_) => panic!("{what}: no refusal"),
    }
}

fn vector(device: &Device) -> Tensor<1> {
    Tensor::ones([4], device)
}

#[test]
fn autodiff_is_refused() {
    for (_, plain) in devices() {
        let tracked = plain.clone().autodiff();
        let data = || TensorData::from([1.0f32, 2.0, 3.0, 4.0]);
        on_device(refill(vector(&tracked), data()), "tensor");
        let integers = Tensor::<1, Int>::from_ints([1, 2, 3, 4], &tracked);
        on_device(refill_int(integers, data()), "tensor");
        on_device(overwrite(vector(&tracked), vector(&plain)), "tensor");
        on_device(overwrite(vector(&plain), vector(&tracked)), "with");

        on_device(FlatTensor::new(vector(&tracked), 0, 0), "a tensor");
        let flat = || FlatTensor::new(vector(&plain), 0, 0).expect("a tensor that fits");
        let ones = |device: &Device| Tensor::<2>::ones([1, 1], device);
        let add = |direction: &Device, coefficients: &Device| {
            add_directions(vec![flat()], &[vector(direction)], ones(coefficients))
        };
        on_device(add(&tracked, &plain), "a direction");
        on_device(add(&plain, &tracked), "coefficients");
        on_device(from_flat(vec![flat()], &vector(&tracked)), "a vector");
        on_device(to_flat(&[flat()], vector(&tracked)), "a vector");

        let new = |[parameter, gradient, moment]: [&Device; 3]| {
            let moments = [vector(&plain), vector(moment)];
            AdamwTensors::new(vector(parameter), vector(gradient), moments, true)
        };
        on_device(new([&tracked, &plain, &plain]), "parameter");
        on_device(new([&plain, &tracked, &plain]), "gradient");
        on_device(new([&plain, &plain, &tracked]), "second moment");
        let tensors = || new([&plain; 3]).expect("tensors that fit");
        let rounded = tensors().with_rounded(vector(&tracked));
        on_device(rounded, "rounded parameter");
        let numbers = |device: &Device| adamw_numbers(step().numbers(), device);
        let factor = |device: &Device| Tensor::<1>::ones([1], device);
        let step = |factor, numbers| adamw(vec![tensors()], factor, numbers);
        on_device(step(factor(&tracked), numbers(&plain)), "factor");
        let inside = Tensor::from_inner(numbers(&plain));
        on_device(step(factor(&plain), inside), "numbers");
        on_device(clip_factor(factor(&tracked), 1.0, None), "squares");
        let scale = Some(Tensor::ones([3], &tracked));
        on_device(clip_factor(factor(&plain), 1.0, scale), "scale");
    }
}

fn step() -> AdamwStep {
    AdamwStep {
        lr: 0.1,
        beta_1: 0.9,
        beta_2: 0.99,
        epsilon: 1e-8,
        weight_decay: 0.0,
        time: 1,
    }
}

#[test]
fn a_step_takes_one_factor_and_its_numbers() {
    for (name, device) in devices() {
        let tensors = || {
            let moments = [0, 1].map(|_| Tensor::zeros([4], &device));
            let tensors = AdamwTensors::new(vector(&device), vector(&device), moments, false);
            vec![tensors.expect("tensors that fit")]
        };
        let numbers_of = || adamw_numbers(step().numbers(), &device);
        let ones = |n: usize| Tensor::<1>::ones([n], &device);
        let shape = |result: Result<Vec<AdamwTensors>, Error>, expected: &str| match result {
            Err(Error::Shape { what, .. }) => assert_eq!(what, expected, "{name}"),
            other => panic!("{name} {expected}: {:?}", other.map(drop)),
        };
        shape(adamw(tensors(), ones(2), numbers_of()), "factor");
        shape(adamw(tensors(), ones(1), ones(3)), "numbers");
        if name == "cpu" {
            let wide = Tensor::ones([1], (&device, DType::F64));
            let refused = adamw(tensors(), wide, numbers_of());
            assert!(matches!(refused, Err(Error::Dtype { what: "factor", .. })));
        }
        let done = adamw(tensors(), ones(1), numbers_of()).expect("arguments that fit");
        let (parameter, ..) = done.into_iter().next().expect("one").into_tensors::<1>();
        assert!(numbers(parameter).iter().all(|&p| (p - 0.9).abs() < 1e-6));
    }
}

#[test]
fn the_cpu_steps_by_gradients_of_up_to_32_bits() {
    let (name, device) = devices().remove(0);
    if name != "cpu" {
        return;
    }
    let wide = Tensor::<1>::ones([4], (&device, DType::F64));
    let moments = [0, 1].map(|_| vector(&device));
    let refused = AdamwTensors::new(vector(&device), wide, moments, true);
    assert!(matches!(
        refused,
        Err(Error::Dtype {
            what: "gradient",
            ..
        })
    ));
}

#[test]
fn tensors_are_on_one_device() {
    let devices = devices();
    let [(_, one), (_, other)] = devices.as_slice() else {
        println!("skipped: one device only");
        return;
    };
    on_device(overwrite(vector(one), vector(other)), "with");
    let zeros = |width, device| Tensor::<2>::zeros([2, width], device);
    let states = RunStates::new(zeros(256, one), zeros(64, other), zeros(24, one));
    on_device(encode_states(states), "gradients");
    let moments = [0, 1].map(|_| vector(one));
    let tensors = AdamwTensors::new(vector(one), vector(one), moments, true);
    let tensors = vec![tensors.expect("tensors that fit")];
    let factor = Tensor::ones([1], other);
    on_device(
        adamw(tensors, factor, adamw_numbers(step().numbers(), other)),
        "parameter",
    );
}
