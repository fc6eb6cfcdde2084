//! A NaN before a reset, a single step, no steps and no sequences, refusals.

use burn::tensor::{Bool, DType, Device, FloatDType, Tensor, TensorData};
use riverrun::nn::{Rssm, RssmState};
use riverrun::{Error, Sequence};

use super::{FORMS, Form, inputs, small};
use crate::common::{assert_close, devices, numbers};
use crate::key;

/// Sets one number of `[B, T, N]`.
fn with(x: &Tensor<3>, at: [usize; 3], value: f32) -> Tensor<3> {
    let [_, steps, width] = x.dims();
    let mut data: Vec<f32> = x.clone().into_data().iter().collect();
    data[(at[0] * steps + at[1]) * width + at[2]] = value;
    Tensor::from_data(TensorData::new(data, x.dims()), &x.device())
}

#[test]
fn a_nan_ends_at_a_reset() {
    for (name, device) in devices() {
        for device in [device.clone(), device.autodiff()] {
            for form in FORMS {
                let model = small(&device);
                let (tokens, actions) = inputs(2, 4, &device);
                let marks = [[true, false, true, false], [true, false, false, true]];
                let reset = Tensor::<2, Bool>::from_data(marks, &device);
                let run = |tokens, actions, state| {
                    let sequence = Sequence::new().with_reset(reset.clone()).with_state(state);
                    let key = key([1, 2, 3, 4], &device);
                    let found = form.observe(&model, tokens, actions, key, sequence);
                    [found.deter, found.stoch, found.posterior_logits]
                };
                let state = |value: f32| {
                    RssmState::new(
                        Tensor::full([2, 16], value, &device),
                        Tensor::full([2, 20], value, &device),
                    )
                };
                // The state before the first step, an action of a step that restarts, tokens in the middle of an episode.
                let bad = f32::NAN;
                let found = run(
                    with(&tokens, [0, 1, 0], bad),
                    with(&actions, [1, 3, 1], f32::INFINITY),
                    state(bad),
                );
                let expected = run(tokens, actions, state(0.0));
                for (found, expected) in found.into_iter().zip(expected) {
                    let rows = |x: Tensor<3>| {
                        // Step 1 of sequence 0 is the NaN itself.
                        let mut rows = numbers(x.clone().narrow(0, 1, 1));
                        rows.extend(numbers(x.clone().narrow(0, 0, 1).narrow(1, 0, 1)));
                        rows.extend(numbers(x.narrow(0, 0, 1).narrow(1, 2, 2)));
                        rows
                    };
                    let found = rows(found);
                    assert!(found.iter().all(|x| x.is_finite()), "{name} {form:?}");
                    assert_close(&name, &found, &rows(expected), 1e-6);
                }
            }
        }
    }
}

/// The gradients of the tokens and of a weight from the states of an episode after one whose loss is not a number.
#[test]
fn a_gradient_that_is_not_a_number_ends_at_a_reset() {
    for (name, device) in devices() {
        let device = &device.autodiff();
        for form in FORMS {
            let model = small(device);
            let (tokens, actions) = inputs(1, 3, device);
            let start = RssmState::new(
                Tensor::zeros([1, 16], device).require_grad(),
                Tensor::zeros([1, 20], device).require_grad(),
            );
            let reset = Tensor::<2, Bool>::from_data([[false, true, false]], device);
            let sequence = Sequence::new().with_reset(reset).with_state(start.clone());
            let key = key([1, 2, 3, 4], device);
            let found = form.observe(&model, tokens, actions, key, sequence);
            let after = found.deter.narrow(1, 1, 2) * f32::NAN;
            let grads = after.sum().backward();
            for state in [start.deter, start.stoch] {
                let gradient = numbers(state.grad(&grads).expect("a gradient"));
                assert!(gradient.iter().all(|&x| x == 0.0), "{name} {form:?}");
            }
        }
    }
}

#[test]
fn a_single_step_is_alike_in_both_forms() {
    for (name, device) in devices() {
        let device = &device.autodiff();
        let model = small(device);
        let run = |form: Form| {
            let (tokens, actions) = inputs(2, 1, device);
            let tokens = tokens.require_grad();
            let sequence = Sequence::new();
            let key = key([1, 2, 3, 4], device);
            let found = form.observe(&model, tokens.clone(), actions, key, sequence);
            let grads =
                (found.features().powi_scalar(2).sum() + found.prior_logits.sum()).backward();
            let gradient = |x: Option<Tensor<3>>| numbers(x.expect("a gradient"));
            let blocks = model.hidden_blocks.weight.val().grad(&grads);
            (
                numbers(found.deter),
                [gradient(tokens.grad(&grads)), gradient(blocks)],
            )
        };
        let ((deter, d), (deter_2, d_2)) = (run(FORMS[0]), run(FORMS[1]));
        assert_close(&name, &deter_2, &deter, 1e-6);
        for (d, d_2) in d.iter().zip(&d_2) {
            assert_close(&name, d_2, d, 1e-5);
        }
    }
}

#[test]
fn gradients_flow_to_the_inputs_of_frozen_weights() {
    let plain = Device::flex();
    let device = &plain.clone().autodiff();
    let frozen = small(&plain);
    let run = |form: Form| {
        let (tokens, actions) = inputs(2, 3, &plain);
        let tokens = Tensor::from_inner(tokens).require_grad();
        let found = form.observe(
            &frozen,
            tokens.clone(),
            Tensor::from_inner(actions),
            key([1, 2, 3, 4], device),
            Sequence::new(),
        );
        let grads = found.features().powi_scalar(2).sum().backward();
        numbers(tokens.grad(&grads).expect("a gradient"))
    };
    assert_close("frozen", &run(FORMS[1]), &run(FORMS[0]), 1e-5);
}

#[test]
fn no_steps_and_no_sequences_have_a_backward_pass() {
    for (name, device) in devices() {
        let device = &device.autodiff();
        for form in FORMS {
            let model = small(device);
            for [batch, steps] in [[0, 5], [2, 0], [0, 0]] {
                let what = format!("{name} {form:?} B {batch} T {steps}");
                let tokens = Tensor::<3>::ones([batch, steps, 3], device).require_grad();
                let actions = Tensor::<3>::ones([batch, steps, 2], device).require_grad();
                let key = || key([1, 2, 3, 4], device);
                let reset = Tensor::<2, Bool>::full([batch, steps], true, device);
                let start = || model.initial(batch, device, FloatDType::F32);
                let observe = || {
                    let sequence = Sequence::new().with_reset(reset.clone());
                    let sequence = sequence.with_state(start());
                    form.observe(&model, tokens.clone(), actions.clone(), key(), sequence)
                };
                let found = observe();
                assert_eq!(found.features().dims(), [batch, steps, 36], "{what}");
                assert_eq!(found.last.deter.dims(), [batch, 16], "{what}");
                let loss = found.features().sum() + found.prior_logits.sum();
                let grads = (loss + found.posterior_logits.sum()).backward();
                let weight = model.posterior_logits.weight.val();
                let gradient = numbers(weight.grad(&grads).expect("a gradient"));
                assert!(gradient.iter().all(|&d| d == 0.0), "{what}");
                if let Some(gradient) = tokens.grad(&grads) {
                    assert_eq!(gradient.dims(), tokens.dims(), "{what}");
                }
                let kl = observe().kl(&model, 1.0).total();
                assert!(numbers(kl.clone())[0].is_nan(), "{what}");
                let _ = kl.backward();
                for imagined in [
                    model.imagine(actions.clone(), key(), start()),
                    model.imagine_with(
                        |_, state| Tensor::zeros([state.deter.dims()[0], 2], device),
                        steps,
                        key(),
                        start(),
                    ),
                ] {
                    assert_eq!(imagined.features().dims(), [batch, steps, 36], "{what}");
                    assert_eq!(imagined.actions.dims(), [batch, steps, 2], "{what}");
                    let _ = imagined.features().sum().backward();
                }
            }
        }
    }
}

fn refusals(model: &Rssm, device: &Device) -> Vec<(&'static str, Result<(), Error>)> {
    let (tokens, actions) = inputs(2, 3, device);
    let good = || key([1, 2, 3, 4], device);
    let short = Tensor::from_ints([1, 2, 3], device);
    let wide = |x: &Tensor<3>| x.clone().cast(FloatDType::F64);
    let start = || model.initial(2, device, FloatDType::F32);
    let state = || model.initial(2, device, FloatDType::F64);
    let observe = |tokens: &Tensor<3>, actions: &Tensor<3>, key, sequence| {
        let (tokens, actions) = (tokens.clone(), actions.clone());
        model
            .checked_observe(tokens, actions, key, sequence)
            .map(drop)
    };
    let imagine = |actions: &Tensor<3>, key, state| {
        model.checked_imagine(actions.clone(), key, state).map(drop)
    };
    let new = Sequence::new;
    vec![
        ("key", observe(&tokens, &actions, short.clone(), new())),
        ("tokens", observe(&wide(&tokens), &actions, good(), new())),
        ("actions", observe(&tokens, &wide(&actions), good(), new())),
        (
            "deter",
            observe(&tokens, &actions, good(), new().with_state(state())),
        ),
        ("key", imagine(&actions, short, start())),
        ("actions", imagine(&wide(&actions), good(), start())),
        ("deter", imagine(&actions, good(), state())),
    ]
}

#[test]
fn what_does_not_go_with_the_weights_is_refused_by_name() {
    let device = Device::flex();
    let model = small(&device);
    for (expected, result) in refusals(&model, &device) {
        match result {
            Err(Error::Shape { what, .. } | Error::Dtype { what, .. }) => {
                assert_eq!(what, expected);
            }
            other => panic!("{expected}: {other:?}"),
        }
    }
    let (tokens, actions) = inputs(2, 3, &device);
    let found = model.checked_observe(tokens, actions, key([1; 4], &device), Sequence::new());
    assert_eq!(found.expect("inputs that fit").deter.dtype(), DType::F32);
}

#[test]
fn inputs_are_on_the_device_of_the_weights() {
    let devices = devices();
    let [(_, one), (_, other)] = devices.as_slice() else {
        println!("skipped: one device only");
        return;
    };
    let model = small(one);
    let (tokens, actions) = inputs(2, 3, one);
    let far = inputs(2, 3, other).1;
    let observe = |actions: &Tensor<3>, device| {
        let (tokens, key) = (tokens.clone(), key([1, 2, 3, 4], device));
        model.checked_observe(tokens, actions.clone(), key, Sequence::new())
    };
    let refused = |result, expected| match result {
        Err(Error::Device { what, .. }) => assert_eq!(what, expected),
        Err(error) => panic!("{expected}: {error}"),
        Ok(_) => panic!("{expected}: no refusal"),
    };
    refused(observe(&far, one), "actions");
    refused(observe(&actions, other), "key");
}
