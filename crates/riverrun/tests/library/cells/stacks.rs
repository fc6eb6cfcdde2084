//! Stacks against themselves, and what they refuse.

use burn::module::Param;
use burn::tensor::{Bool, Tensor, TensorData};
use riverrun::Sequence;
use riverrun::nn::{GruConfig, LstmConfig, LstmState, Recurrent};
use riverrun::ops::{Cell, CellOptions, CellState, CellWeights, cell_layer};

use super::net::Net;
use crate::common::{assert_close, devices, numbers};
use crate::normal;

#[test]
fn chunks_and_steps_of_a_stack_agree_with_the_whole() {
    let (b, t, i, h) = (2, 23, 5, 9);
    for (name, device) in devices() {
        for kind in Net::KINDS {
            let net = Net::new(kind, [i, h], 2, false, &device);
            let x: Tensor<3> = normal([b, t, i], &device);
            let (whole, (h_n, _)) = net.run(x.clone(), None, None, None);
            for cuts in [vec![10, 1, 12], vec![1; t]] {
                let (mut state, mut parts, mut at) = (None, Vec::new(), 0);
                for len in cuts {
                    let (y, next) = net.run(x.clone().narrow(1, at, len), state, None, None);
                    parts.push(y);
                    state = Some(next);
                    at += len;
                }
                let found = numbers(Tensor::cat(parts, 1));
                assert_close(
                    &format!("{name} {kind}"),
                    &found,
                    &numbers(whole.clone()),
                    1e-6,
                );
                let (end, _) = state.expect("a state");
                assert_close(
                    &format!("{name} {kind} h_n"),
                    &numbers(end),
                    &numbers(h_n.clone()),
                    1e-6,
                );
            }
        }
    }
}

#[test]
fn pieces_in_one_row_are_as_pieces_alone() {
    let (t, i, h) = (9, 3, 6);
    for (name, device) in devices() {
        for kind in Net::KINDS {
            let net = Net::new(kind, [i, h], 2, true, &device);
            let x: Tensor<3> = normal([2, t, i], &device);
            let mut marks = vec![false; 2 * t];
            (marks[4], marks[t + 1], marks[t + 7]) = (true, true, true);
            let mask = Tensor::<2, Bool>::from_data(TensorData::new(marks, [2, t]), &device);
            let (y, _) = net.run(x.clone(), None, Some(mask.clone()), None);
            let first = x.clone().narrow(1, 0, 1);
            let (one, _) = net.run(first.clone(), None, Some(mask.narrow(1, 0, 1)), None);
            let (expected, _) = net.run(first, None, None, None);
            let what = format!("{name} {kind} one step");
            assert_close(&what, &numbers(one), &numbers(expected), 1e-6);
            for (row, pieces) in [(0, vec![0..4, 4..t]), (1, vec![0..1, 1..7, 7..t])] {
                for piece in pieces {
                    let part = |of: &Tensor<3>| {
                        of.clone()
                            .narrow(0, row, 1)
                            .narrow(1, piece.start, piece.len())
                    };
                    let (alone, _) = net.run(part(&x), None, None, None);
                    assert_close(
                        &format!("{name} {kind} {row} {piece:?}"),
                        &numbers(part(&y)),
                        &numbers(alone),
                        1e-6,
                    );
                }
            }
        }
    }
}

#[test]
fn sequences_of_different_lengths_are_as_sequences_alone() {
    let (b, t, i, h) = (4, 7, 3, 6);
    let lengths = [3, 0, 7, 1];
    for (name, device) in devices() {
        let device = device.autodiff();
        for kind in Net::KINDS {
            let net = Net::new(kind, [i, h], 2, true, &device);
            let clean: Tensor<3> = normal([b, t, i], &device);
            let past: Vec<bool> = (0..b * t).map(|n| n % t >= lengths[n / t]).collect();
            let past = Tensor::<3, Bool>::from_data(TensorData::new(past, [b, t, 1]), &device);
            let dirty = clean
                .clone()
                .mask_fill(past.expand([b, t, i]), f32::NAN)
                .require_grad();
            let state = (
                normal([4, b, h], &device),
                (kind == "lstm").then(|| normal([4, b, h], &device)),
            );
            let (y, (h_n, c_n)) = net.run(
                dirty.clone(),
                Some(state.clone()),
                None,
                Some(lengths.as_slice()),
            );
            let row = |of: &Tensor<3>, dim: usize, n: usize| of.clone().narrow(dim, n, 1);
            for (n, &length) in lengths.iter().enumerate() {
                let what = format!("{name} {kind} sequence {n}");
                let start = (row(&state.0, 1, n), state.1.as_ref().map(|c| row(c, 1, n)));
                let found = numbers(row(&y, 0, n));
                let (inside, outside) = found.split_at(length * 2 * h);
                assert!(outside.iter().all(|&y| y == 0.0), "{what}: {outside:?}");
                let (alone, (h_alone, c_alone)) = match length {
                    0 => (Vec::new(), start),
                    _ => {
                        let x = row(&clean, 0, n).narrow(1, 0, length);
                        let (y, last) = net.run(x, Some(start), None, None);
                        (numbers(y), last)
                    }
                };
                assert_close(&what, inside, &alone, 1e-6);
                assert_close(&what, &numbers(row(&h_n, 1, n)), &numbers(h_alone), 1e-6);
                if let (Some(c_n), Some(c_alone)) = (&c_n, c_alone) {
                    assert_close(&what, &numbers(row(c_n, 1, n)), &numbers(c_alone), 1e-6);
                }
            }
            let grads = (y.sum() + h_n.sum()).backward();
            let d_x = numbers(dirty.grad(&grads).expect("a gradient"));
            for (n, d_x) in d_x.iter().enumerate() {
                let (sequence, step) = (n / (t * i), n / i % t);
                let inside = step < lengths[sequence];
                assert!(
                    d_x.is_finite() && (inside || *d_x == 0.0),
                    "{name} {kind}: sequence {sequence}, step {step}: {d_x}"
                );
            }
        }
    }
}

#[test]
fn no_steps_give_the_initial_state_and_its_gradient() {
    for (name, device) in devices() {
        if name != "cpu" {
            continue;
        }
        let device = device.autodiff();
        let layer = LstmConfig::new(3, 4).init(&device);
        let state = LstmState::new(
            normal([1, 2, 4], &device).require_grad(),
            normal([1, 2, 4], &device).require_grad(),
        );
        let x = Tensor::<3>::zeros([2, 0, 3], &device);
        let (y, last) = layer.forward(x, Some(state.clone()));
        assert_eq!(y.dims(), [2, 0, 4]);
        assert_close(
            "h",
            &numbers(last.h.clone()),
            &numbers(state.h.clone()),
            0.0,
        );
        assert_close(
            "c",
            &numbers(last.c.clone()),
            &numbers(state.c.clone()),
            0.0,
        );
        let grads = (last.h * 2.0 + last.c * 3.0).sum().backward();
        let of = |tensor: &Tensor<3>| numbers(tensor.grad(&grads).expect("a gradient"));
        assert_eq!(of(&state.h), vec![2.0; 8]);
        assert_eq!(of(&state.c), vec![3.0; 8]);
    }
}

#[test]
fn half_formats_follow_f32() {
    use burn::tensor::FloatDType;
    let (b, t, i, h) = (2, 40, 8, 16);
    for (name, device) in devices() {
        let net = LstmConfig::new(i, h).init(&device);
        let x: Tensor<3> = normal([b, t, i], &device);
        let weights = net.stack.layers[0].weights();
        let run = |x, weights| {
            cell_layer(x, weights, Cell::Lstm, Sequence::new(), CellOptions::new())
                .unwrap()
                .0
        };
        let full = run(x.clone(), weights.clone());
        for (dtype, epsilon) in [(FloatDType::F16, 1e-3), (FloatDType::BF16, 8e-3)] {
            if name != "cpu" {
                println!("skipped on {name}: {dtype:?} may not be there");
                continue;
            }
            let bias = |bias: &Option<Tensor<1>>| bias.clone().map(|bias| bias.cast(dtype));
            let rounded = CellWeights::new(
                weights.weight_ih.clone().cast(dtype),
                weights.weight_hh.clone().cast(dtype),
            )
            .with_biases(bias(&weights.bias_ih), bias(&weights.bias_hh));
            let half = run(x.clone().cast(dtype), rounded);
            let what = format!("{name} {dtype:?}");
            assert_close(&what, &numbers(half), &numbers(full.clone()), 4.0 * epsilon);
        }
    }
}

#[test]
fn what_does_not_fit_is_named() {
    for (_, device) in devices() {
        let layer = GruConfig::new(3, 4).init(&device);
        let x = Tensor::<3>::zeros([2, 5, 3], &device);
        let weights = || layer.stack.layers[0].weights();
        let gru = layer.stack.layers[0].cell;
        let refused = |x: Tensor<3>, weights: CellWeights, sequence: Sequence<CellState>| {
            let error = cell_layer(x, weights, gru, sequence, CellOptions::new())
                .expect_err("does not fit");
            error.to_string()
        };
        let wide = Tensor::<3>::zeros([2, 5, 7], &device);
        let error = refused(wide, weights(), Sequence::new());
        assert!(
            error.contains("weight_ih") && error.contains("[12, 7]"),
            "{error}"
        );
        let state = |batch| CellState::new(Tensor::zeros([batch, 4], &device));
        let run = |state| Sequence::new().with_state(state);
        let with_c = state(2).with_c(Tensor::zeros([2, 4], &device));
        assert!(refused(x.clone(), weights(), run(with_c)).contains("c0"));
        assert!(refused(x.clone(), weights(), run(state(3))).contains("h0"));
        let long = layer.checked_run(x.clone(), Sequence::new().with_lengths(&[5, 6]));
        let error = long.expect_err("too long").to_string();
        assert!(error.contains("sequence 1 has 6 steps"), "{error}");
        let few = layer.checked_run(x, Sequence::new().with_lengths(&[5]));
        assert!(
            few.expect_err("one is missing")
                .to_string()
                .contains("lengths")
        );
    }
}

#[test]
fn memory_starts_spread_over_the_time_scale() {
    for (_, device) in devices() {
        let numbers = |bias: &Option<Param<Tensor<1>>>| numbers(bias.as_ref().expect("one").val());
        let lstm = LstmConfig::new(3, 4).with_time_scale(100).init(&device);
        let layer = &lstm.stack.layers[0];
        let (input, state) = (numbers(&layer.bias_ih), numbers(&layer.bias_hh));
        for n in 0..4 {
            let forget = (n as f64 + 0.5) / 4.0 * 100f64.ln();
            assert!((input[4 + n] - forget).abs() < 1e-5 && (input[n] + forget).abs() < 1e-5);
            assert!(state[n] == 0.0 && state[4 + n] == 0.0);
        }
        assert!(input[8..].iter().all(|x| x.abs() <= 0.5));
        let gru = GruConfig::new(3, 4).with_time_scale(100).init(&device);
        let input = numbers(&gru.stack.layers[0].bias_ih);
        assert!((input[7] - 0.875 * 100f64.ln()).abs() < 1e-5);
    }
}

#[test]
#[should_panic(expected = "whole sequence")]
fn two_directions_have_no_step() {
    let (_, device) = devices().into_iter().next().expect("a device");
    let layer = GruConfig::new(3, 4).with_bidirectional(true).init(&device);
    let _ = layer.step(Tensor::zeros([1, 3], &device), None);
}

#[test]
fn a_stream_is_the_steps_of_the_layer() {
    let (b, t, i, h) = (3, 12, 5, 19);
    let Some((_, device)) = devices().into_iter().find(|(name, _)| name == "cpu") else {
        return;
    };
    for kind in Net::KINDS {
        let net = Net::new(kind, [i, h], 2, false, &device);
        let mut stream = net.stream(b).expect("one direction");
        let x: Tensor<3> = normal([b, t, i], &device);
        let (whole, (h_n, c_n)) = net.run(x.clone(), None, None, None);
        for s in 0..t {
            let step: Vec<f32> = x.clone().narrow(1, s, 1).into_data().iter().collect();
            let found: Vec<f64> = stream
                .step(&step)
                .expect("the right length")
                .iter()
                .map(|&y| f64::from(y))
                .collect();
            let expected = numbers(whole.clone().narrow(1, s, 1));
            assert_close(&format!("{kind} step {s}"), &found, &expected, 0.0);
        }
        let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        let last = |states: Tensor<3>| numbers(states.narrow(0, 1, 1));
        let found = wide(stream.h(1).expect("two layers"));
        assert_close(kind, &found, &last(h_n), 0.0);
        assert_eq!(stream.c(1).is_some(), c_n.is_some());
        if let (Some(found), Some(c_n)) = (stream.c(1), c_n) {
            assert_close(kind, &wide(found), &last(c_n), 0.0);
        }
        // One sequence from the start again, the others on: its step is that of a fresh one.
        let step: Vec<f32> = x.clone().narrow(1, 0, 1).into_data().iter().collect();
        stream.restart(1);
        let found = wide(stream.step(&step).expect("the right length"));
        let expected = numbers(whole.narrow(1, 0, 1));
        assert_close(kind, &found[h..2 * h], &expected[h..2 * h], 0.0);
        assert!(stream.step(&step[1..]).is_err());
        let both = Net::new(kind, [i, h], 1, true, &device);
        assert!(both.stream(1).is_err());
    }
}
