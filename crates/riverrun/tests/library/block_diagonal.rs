//! The block-diagonal recurrence on tensors and its layer.

use burn::module::Param;
use burn::tensor::{Bool, Device, Distribution, Tensor, TensorData};
use riverrun::nn::{BlockDiagonalRnnConfig, Recurrent};
use riverrun::ops::{SavedStates, ScanOptions, block_diagonal_scan};
use riverrun::{Error, Sequence};
use riverrun_testkit::block_diagonal;

use crate::common::{assert_close, devices, numbers};
use crate::random;

#[test]
fn the_block_diagonal_scan_is_that_of_the_oracle() {
    for (name, device) in devices() {
        let device = device.autodiff();
        // Beyond 8 a GPU has no kernel.
        for (n, size) in [1, 2, 3, 4, 8, 9].into_iter().enumerate() {
            let (reverse, blocks) = (n % 2 == 1, 3);
            let (batch, steps) = (2, 9);
            let dim = blocks * size;
            let a = random([batch, steps, blocks, size, size], &device).div_scalar(size as f32);
            let a = a.detach().require_grad();
            let b = random([batch, steps, dim], &device).require_grad();
            let h0 = random([batch, dim], &device).require_grad();
            let (d_h, d_last) = (
                random([batch, steps, dim], &device),
                random([batch, dim], &device),
            );
            let mask: Vec<bool> = (0..batch * steps).map(|n| n % 13 == 4).collect();
            let reset = TensorData::new(mask.clone(), [batch, steps]);
            let reset = Tensor::<2, Bool>::from_data(reset, &device);
            let sequence = Sequence::new().with_state(h0.clone()).with_reset(reset);
            let options = ScanOptions::new().with_reverse(reverse);
            let (h, last) = block_diagonal_scan(a.clone(), b.clone(), sequence, options).unwrap();
            let loss = (h.clone() * d_h.clone()).sum() + (last * d_last.clone()).sum();
            let grads = loss.backward();

            let shape = block_diagonal::Shape {
                batch,
                steps,
                blocks,
                size,
            };
            let problem = block_diagonal::Problem { shape, reverse };
            let (av, bv, h0v) = (numbers(a.clone()), numbers(b.clone()), numbers(h0.clone()));
            let (h0v, mask) = (Some(&h0v[..]), Some(&mask[..]));
            let reference =
                block_diagonal::oracle::forward(&problem, &av, &bv, h0v, mask).expect("a problem");
            let d = block_diagonal::oracle::backward(
                &problem,
                &av,
                &bv,
                h0v,
                mask,
                &numbers(d_h),
                Some(&numbers(d_last)),
            )
            .expect("a problem");
            let close = |what: &str, found: Vec<f64>, expected: &[f64]| {
                let what = format!("{name} blocks of {size}, reverse {reverse}, {what}");
                assert_close(&what, &found, expected, 4e-6);
            };
            close("h", numbers(h), &reference);
            close("d_A", numbers(a.grad(&grads).expect("a gradient")), &d.a);
            close("d_b", numbers(b.grad(&grads).expect("a gradient")), &d.b);
            close("d_h0", numbers(h0.grad(&grads).expect("a gradient")), &d.h0);
        }
    }
}

#[test]
fn no_steps_give_back_the_initial_state() {
    for (name, device) in devices() {
        let device = device.autodiff();
        let (a, b) = (
            Tensor::<5>::zeros([2, 0, 3, 2, 2], &device),
            Tensor::zeros([2, 0, 6], &device),
        );
        let h0 = random([2, 6], &device).require_grad();
        let sequence = Sequence::new().with_state(h0.clone());
        let (h, last) = block_diagonal_scan(a, b, sequence, ScanOptions::new()).unwrap();
        assert_eq!(h.dims(), [2, 0, 6], "{name}");
        let grads = last.clone().sum().backward();
        assert_close(&name, &numbers(last), &numbers(h0.clone()), 0.0);
        let d_h0 = numbers(h0.grad(&grads).expect("a gradient"));
        assert_close(&name, &d_h0, &[1.0; 12], 0.0);
    }
}

#[test]
fn what_does_not_fit_is_an_error() {
    for (_, device) in devices() {
        let a = Tensor::<5>::zeros([2, 4, 3, 2, 2], &device);
        let b = Tensor::<3>::zeros([2, 4, 5], &device);
        let refused = block_diagonal_scan(a.clone(), b, Sequence::new(), ScanOptions::new());
        assert!(matches!(refused, Err(Error::Shape { what: "b", .. })));
        let b = Tensor::<3>::zeros([2, 4, 6], &device);
        let options = ScanOptions::new().with_saved_states(SavedStates::None);
        let refused = block_diagonal_scan(a, b, Sequence::new(), options);
        assert!(matches!(refused, Err(Error::Unsupported(_))));
    }
}

#[test]
#[should_panic = "10 channels do not make blocks of"]
fn channels_make_whole_blocks() {
    BlockDiagonalRnnConfig::new(3, 10).init(&Device::default());
}

#[test]
fn the_layer_is_its_formulas_in_f64() {
    let (b, t, i, h) = (2, 40, 5, 12);
    for (name, device) in devices() {
        for block in [1, 3, 4, 12] {
            let layer = BlockDiagonalRnnConfig::new(i, h)
                .with_block(block)
                .init(&device);
            let x = Tensor::<3>::random([b, t, i], Distribution::Normal(0.0, 2.0), &device);
            let h0 = random([b, h], &device);
            let (y, last) = layer.forward(x.clone(), Some(h0.clone()));

            let (wa, wb) = (
                numbers(layer.transition.weight.val()),
                numbers(layer.input.weight.val()),
            );
            let ba = numbers(layer.transition.bias.as_ref().expect("a bias").val());
            let bb = numbers(layer.input.bias.as_ref().expect("a bias").val());
            let x = numbers(x);
            let project = |row: usize, w: &[f64], bias: &[f64]| -> Vec<f64> {
                let mut out = bias.to_vec();
                for n in 0..i {
                    for (c, out) in out.iter_mut().enumerate() {
                        *out += x[row * i + n] * w[n * bias.len() + c];
                    }
                }
                out
            };
            let (mut expected, start) = (Vec::new(), numbers(h0));
            for sequence in 0..b {
                let mut state = start[sequence * h..][..h].to_vec();
                for row in sequence * t..(sequence + 1) * t {
                    let (u, input) = (project(row, &wa, &ba), project(row, &wb, &bb));
                    let at = |row: usize, column: usize| u[row * block + column];
                    let next = |channel: usize| {
                        let first = channel - channel % block;
                        let product = |j: usize| {
                            let column: f64 = (first..first + block).map(|k| at(k, j).abs()).sum();
                            at(channel, j) / column.max(1.0) * state[first + j]
                        };
                        input[channel] + (0..block).map(product).sum::<f64>()
                    };
                    state = (0..h).map(next).collect();
                    expected.extend_from_slice(&state);
                }
            }
            // f32 through a product, 40 steps that lengthen nothing, and states of some tens.
            let what = format!("{name} blocks of {block}");
            assert_close(&what, &numbers(y.clone()), &expected, 1e-5);
            let end = y.narrow(1, t - 1, 1).squeeze_dim::<2>(1);
            assert_close(&what, &numbers(last), &numbers(end), 0.0);
        }
    }
}

#[test]
fn the_layer_runs_in_chunks_and_steps() {
    let (b, t, i, h) = (3, 23, 5, 8);
    for (name, device) in devices() {
        let layer = BlockDiagonalRnnConfig::new(i, h).init(&device);
        let x = random([b, t, i], &device);
        let (whole, last) = layer.run(x.clone(), Sequence::new());
        let (first, state) = layer.forward(x.clone().narrow(1, 0, 10), None);
        let (second, end) = layer.forward(x.clone().narrow(1, 10, 13), Some(state));
        let chunked = numbers(Tensor::cat(vec![first, second], 1));
        assert_close(&name, &chunked, &numbers(whole.clone()), 1e-6);
        assert_close(&name, &numbers(end), &numbers(last), 1e-6);
        let mut state = None;
        for s in 0..t {
            let (y, next) = layer.step(x.clone().narrow(1, s, 1).squeeze_dim(1), state);
            let expected = numbers(whole.clone().narrow(1, s, 1));
            assert_close(&format!("{name} step {s}"), &numbers(y), &expected, 1e-6);
            state = Some(next);
        }
    }
}

#[test]
fn blocks_count_modulo_their_size() {
    // Every step turns a block of 5 by one place, so after T steps the mark stands at T mod 5.
    for (name, device) in devices() {
        let mut layer = BlockDiagonalRnnConfig::new(1, 5)
            .with_block(5)
            .init(&device);
        let mut turn = vec![0.0f32; 25];
        (0..5).for_each(|j| turn[(j + 1) % 5 * 5 + j] = 1.0);
        let turn = Tensor::<1>::from_floats(turn.as_slice(), &device);
        layer.transition.weight = Param::from_tensor(Tensor::zeros([1, 25], &device));
        layer.transition.bias = Some(Param::from_tensor(turn));
        layer.input.weight = Param::from_tensor(Tensor::zeros([1, 5], &device));
        layer.input.bias = Some(Param::from_tensor(Tensor::zeros([5], &device)));
        let start = Tensor::<2>::from_floats([[1.0, 0.0, 0.0, 0.0, 0.0]], &device);
        let (_, last) = layer.forward(Tensor::zeros([1, 1002, 1], &device), Some(start));
        assert_close(&name, &numbers(last), &[0.0, 0.0, 1.0, 0.0, 0.0], 0.0);
    }
}
