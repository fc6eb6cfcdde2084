//! Weights in the layouts of Keras and cuDNN, against those frameworks' formulas in f64.

use burn::tensor::{Device, Tensor, TensorData};
use riverrun::Error;
use riverrun::nn::{GruConfig, LstmConfig, LstmState, Recurrent};
use riverrun::ops::ResetGate;
use riverrun::weights::{
    from_burn_gru, from_complementary_gru, from_cudnn_gru, from_cudnn_lstm, from_keras_gru,
    from_keras_lstm,
};

use super::net::TOLERANCE;
use crate::common::{assert_close, devices, numbers};
use crate::normal;

const B: usize = 2;
const T: usize = 6;
const I: usize = 3;
const H: usize = 4;
/// The same weights in another layout, or while another thread tunes, may go through a kernel that sums these few products
/// in another order: 7 roundings of 6e-8 a sum, over 6 steps.
const ANOTHER_ORDER: f64 = 7.0 * 6e-8 * T as f64;

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `x · matrix[.., columns]` for a matrix `[x.len(), width]`, `columns` the gate's.
fn product(x: &[f64], matrix: &[f64], width: usize, gate: usize) -> Vec<f64> {
    let sum = |j: usize| {
        let terms = x.iter().enumerate();
        terms
            .map(|(k, x)| x * matrix[k * width + gate * H + j])
            .sum()
    };
    (0..H).map(sum).collect()
}

/// One step each: Keras' formulas with Keras' arrays, `z, r, h` and `i, f, c, o`.
fn keras_gru(x: &[f64], h: &[f64], kernel: &[f64], recurrent: &[f64], bias: &[f64]) -> Vec<f64> {
    let (w, u) = (
        |gate| product(x, kernel, 3 * H, gate),
        |h: &[f64], gate| product(h, recurrent, 3 * H, gate),
    );
    let b = |row: usize, gate: usize, j: usize| {
        bias.get((row * 3 + gate) * H + j).copied().unwrap_or(0.0)
    };
    let gate = |gate: usize| -> Vec<f64> {
        let (w, u) = (w(gate), u(h, gate));
        (0..H)
            .map(|j| sigmoid(w[j] + b(0, gate, j) + u[j] + b(1, gate, j)))
            .collect()
    };
    let (z, r) = (gate(0), gate(1));
    let after = bias.len() == 6 * H;
    let wh = w(2);
    let inner: Vec<f64> = if after {
        let uh = u(h, 2);
        (0..H).map(|j| r[j] * (uh[j] + b(1, 2, j))).collect()
    } else {
        let reset: Vec<f64> = r.iter().zip(h).map(|(r, h)| r * h).collect();
        u(&reset, 2)
    };
    (0..H)
        .map(|j| {
            let candidate = (wh[j] + b(0, 2, j) + inner[j]).tanh();
            z[j] * h[j] + (1.0 - z[j]) * candidate
        })
        .collect()
}

fn keras_lstm(
    x: &[f64],
    h: &[f64],
    c: &[f64],
    kernel: &[f64],
    recurrent: &[f64],
    bias: &[f64],
) -> (Vec<f64>, Vec<f64>) {
    let gate = |gate: usize| -> Vec<f64> {
        let (w, u) = (
            product(x, kernel, 4 * H, gate),
            product(h, recurrent, 4 * H, gate),
        );
        (0..H).map(|j| w[j] + u[j] + bias[gate * H + j]).collect()
    };
    let (i, f, g, o) = (gate(0), gate(1), gate(2), gate(3));
    let c: Vec<f64> = (0..H)
        .map(|j| sigmoid(f[j]) * c[j] + sigmoid(i[j]) * g[j].tanh())
        .collect();
    let h = (0..H).map(|j| sigmoid(o[j]) * c[j].tanh()).collect();
    (h, c)
}

/// The states of all sequences, `step` by `step` from a state.
fn unrolled<S: Clone>(
    x: &[f64],
    start: impl Fn(usize) -> S,
    mut step: impl FnMut(&[f64], &S) -> (Vec<f64>, S),
) -> Vec<f64> {
    let mut all = Vec::new();
    for b in 0..B {
        let mut state = start(b);
        for t in 0..T {
            let (h, next) = step(&x[(b * T + t) * I..][..I], &state);
            all.extend(h);
            state = next;
        }
    }
    all
}

#[test]
fn keras_gru_is_its_formulas() {
    for (name, device) in devices() {
        for reset_gate in [ResetGate::After, ResetGate::Before] {
            let rows = if reset_gate == ResetGate::After { 2 } else { 1 };
            let (kernel, recurrent) = (normal([I, 3 * H], &device), normal([H, 3 * H], &device));
            let bias = normal([rows, 3 * H], &device);
            let x: Tensor<3> = normal([B, T, I], &device);
            let h0: Tensor<3> = normal([1, B, H], &device);
            let gru = from_keras_gru(
                kernel.clone(),
                recurrent.clone(),
                Some(bias.clone()),
                reset_gate,
            )
            .expect("shapes that fit");
            let (y, _) = gru.forward(x.clone(), Some(h0.clone()));
            let (kernel, recurrent, bias) = (numbers(kernel), numbers(recurrent), numbers(bias));
            let h0 = numbers(h0);
            let expected = unrolled(
                &numbers(x),
                |b| h0[b * H..][..H].to_vec(),
                |x, h| {
                    let h = keras_gru(x, h, &kernel, &recurrent, &bias);
                    (h.clone(), h)
                },
            );
            assert_close(
                &format!("{name} {reset_gate:?}"),
                &numbers(y),
                &expected,
                TOLERANCE,
            );
        }
    }
}

/// `h' = (1 - z) h + z c` with rows of `z, r, c`.
fn complementary_gru(x: &[f64], h: &[f64], w: &[f64], u: &[f64], bias: &[f64]) -> Vec<f64> {
    let dot = |row: &[f64], x: &[f64]| row.iter().zip(x).map(|(w, x)| w * x).sum::<f64>();
    let pre = |gate: usize, j: usize, h: &[f64]| {
        let row = gate * H + j;
        dot(&w[row * I..][..I], x) + dot(&u[row * H..][..H], h) + bias[row]
    };
    let gated: Vec<f64> = (0..H).map(|j| sigmoid(pre(1, j, h)) * h[j]).collect();
    let new = |j: usize| {
        let z = sigmoid(pre(0, j, h));
        (1.0 - z) * h[j] + z * pre(2, j, &gated).tanh()
    };
    (0..H).map(new).collect()
}

#[test]
fn complementary_gru_is_its_formulas() {
    for (name, device) in devices() {
        let (w, u) = (normal([3 * H, I], &device), normal([3 * H, H], &device));
        let bias: Tensor<1> = normal([3 * H], &device);
        let x: Tensor<3> = normal([B, T, I], &device);
        let h0: Tensor<3> = normal([1, B, H], &device);
        let gru = from_complementary_gru(w.clone(), u.clone(), bias.clone()).expect("fits");
        let (y, _) = gru.forward(x.clone(), Some(h0.clone()));
        let (w, u, bias, h0) = (numbers(w), numbers(u), numbers(bias), numbers(h0));
        let expected = unrolled(
            &numbers(x),
            |b| h0[b * H..][..H].to_vec(),
            |x, h| {
                let h = complementary_gru(x, h, &w, &u, &bias);
                (h.clone(), h)
            },
        );
        assert_close(&name, &numbers(y), &expected, TOLERANCE);
    }
}

#[test]
fn keras_lstm_is_its_formulas() {
    for (name, device) in devices() {
        let (kernel, recurrent) = (normal([I, 4 * H], &device), normal([H, 4 * H], &device));
        let bias: Tensor<1> = normal([4 * H], &device);
        let x: Tensor<3> = normal([B, T, I], &device);
        let state = LstmState::new(normal([1, B, H], &device), normal([1, B, H], &device));
        let lstm = from_keras_lstm(kernel.clone(), recurrent.clone(), Some(bias.clone()))
            .expect("shapes that fit");
        let (y, _) = lstm.forward(x.clone(), Some(state.clone()));
        let (kernel, recurrent, bias) = (numbers(kernel), numbers(recurrent), numbers(bias));
        let (h0, c0) = (numbers(state.h), numbers(state.c));
        let expected = unrolled(
            &numbers(x),
            |b| (h0[b * H..][..H].to_vec(), c0[b * H..][..H].to_vec()),
            |x, (h, c)| {
                let (h, c) = keras_lstm(x, h, c, &kernel, &recurrent, &bias);
                (h.clone(), (h, c))
            },
        );
        assert_close(&name, &numbers(y), &expected, TOLERANCE);
    }
}

/// The flat vector of one cuDNN layer with these Keras arrays: every gate's matrix transposed, in cuDNN's order of gates,
/// matrices before biases.
fn flat(kernel: &[f64], recurrent: &[f64], biases: [&[f64]; 2], order: &[usize]) -> Vec<f64> {
    let width = order.len() * H;
    let mut params = Vec::new();
    for (matrix, depth) in [(kernel, I), (recurrent, H)] {
        for gate in order {
            for j in 0..H {
                params.extend((0..depth).map(|k| matrix[k * width + gate * H + j]));
            }
        }
    }
    for bias in biases {
        for gate in order {
            params.extend(&bias[gate * H..][..H]);
        }
    }
    params
}

fn vector(values: &[f64], device: &Device) -> Tensor<1> {
    let values: Vec<f32> = values.iter().map(|&x| x as f32).collect();
    let len = values.len();
    Tensor::from_data(TensorData::new(values, [len]), device)
}

#[test]
fn cudnn_s_flat_parameters_are_those_of_keras_in_another_order() {
    for (name, device) in devices() {
        let x: Tensor<3> = normal([B, T, I], &device);
        let (kernel, recurrent) = (normal([I, 3 * H], &device), normal([H, 3 * H], &device));
        let bias: Tensor<2> = normal([2, 3 * H], &device);
        let numeric = numbers(bias.clone());
        let params = flat(
            &numbers(kernel.clone()),
            &numbers(recurrent.clone()),
            [&numeric[..3 * H], &numeric[3 * H..]],
            &[1, 0, 2],
        );
        let config = GruConfig::new(I, H);
        let found = from_cudnn_gru(vector(&params, &device), &config).expect("so many");
        let same = from_keras_gru(kernel, recurrent, Some(bias), ResetGate::After).expect("fits");
        let (found, same) = (
            found.forward(x.clone(), None).0,
            same.forward(x.clone(), None).0,
        );
        assert_close(
            &format!("{name} gru"),
            &numbers(found),
            &numbers(same),
            ANOTHER_ORDER,
        );

        let (kernel, recurrent) = (normal([I, 4 * H], &device), normal([H, 4 * H], &device));
        let bias: Tensor<1> = normal([4 * H], &device);
        let params = flat(
            &numbers(kernel.clone()),
            &numbers(recurrent.clone()),
            [&numbers(bias.clone()), &[0.0; 4 * H]],
            &[0, 1, 2, 3],
        );
        let config = LstmConfig::new(I, H);
        let found = from_cudnn_lstm(vector(&params, &device), &config).expect("so many");
        let same = from_keras_lstm(kernel, recurrent, Some(bias)).expect("fits");
        let (found, same) = (found.forward(x.clone(), None).0, same.forward(x, None).0);
        assert_close(
            &format!("{name} lstm"),
            &numbers(found),
            &numbers(same),
            ANOTHER_ORDER,
        );
    }
}

#[test]
fn cudnn_stacks_keep_all_biases_at_the_end() {
    for (name, device) in devices() {
        let config = GruConfig::new(I, H).with_layers(2).with_bidirectional(true);
        let gru = config.init(&device);
        let mut params = Vec::new();
        for layer in &gru.stack.layers {
            params.extend(numbers(layer.weight_ih.val()));
            params.extend(numbers(layer.weight_hh.val()));
        }
        for layer in &gru.stack.layers {
            params.extend(numbers(layer.bias_ih.as_ref().expect("a bias").val()));
            params.extend(numbers(layer.bias_hh.as_ref().expect("a bias").val()));
        }
        let again = from_cudnn_gru(vector(&params, &device), &config).expect("so many");
        let x: Tensor<3> = normal([B, T, I], &device);
        let (found, expected) = (again.forward(x.clone(), None).0, gru.forward(x, None).0);
        assert_close(&name, &numbers(found), &numbers(expected), ANOTHER_ORDER);
    }
}

#[test]
fn a_wrong_tensor_is_named() {
    for (_, device) in devices() {
        let zeros = |shape| Tensor::<2>::zeros(shape, &device);
        let what = |error: Error| match error {
            Error::Shape { what, .. } => what,
            other => panic!("{other}"),
        };
        let gru = |kernel, recurrent, bias| {
            from_keras_gru(
                zeros(kernel),
                zeros(recurrent),
                Some(zeros(bias)),
                ResetGate::After,
            )
        };
        assert_eq!(what(gru([3, 11], [4, 12], [2, 12]).unwrap_err()), "kernel");
        assert_eq!(
            what(gru([3, 12], [4, 13], [2, 12]).unwrap_err()),
            "recurrent_kernel"
        );
        assert_eq!(what(gru([3, 12], [4, 12], [1, 12]).unwrap_err()), "bias");
        let bias = Tensor::zeros([15], &device);
        let lstm = from_keras_lstm(zeros([3, 16]), zeros([4, 16]), Some(bias));
        assert_eq!(what(lstm.unwrap_err()), "bias");
        let member = |w, u, bias: usize| {
            let bias = Tensor::zeros([bias], &device);
            from_complementary_gru(zeros(w), zeros(u), bias).unwrap_err()
        };
        assert_eq!(what(member([11, 3], [12, 4], 12)), "w");
        assert_eq!(what(member([12, 3], [13, 4], 12)), "u");
        assert_eq!(what(member([12, 3], [12, 4], 11)), "bias");
        let params = Tensor::zeros([100], &device);
        let refused = from_cudnn_lstm(params.clone(), &LstmConfig::new(3, 4));
        assert_eq!(what(refused.unwrap_err()), "cuDNN parameters");
        let before = GruConfig::new(3, 4).with_reset_gate(ResetGate::Before);
        let refused = from_cudnn_gru(params, &before);
        assert!(matches!(refused, Err(Error::Unsupported(_))));
    }
}

#[test]
fn layers_from_elsewhere_can_be_trained() {
    // Whether a weight is a leaf of the graph is no matter of the device.
    for (name, device) in devices().into_iter().filter(|(name, _)| name == "cpu") {
        let device = device.autodiff();
        let x: Tensor<3> = normal([B, T, I], &device);
        let theirs = burn::nn::GruConfig::new(I, H, true).init(&device);
        let kernel = normal([I, 3 * H], &device);
        let recurrent = normal([H, 3 * H], &device);
        let bias = Some(normal([2, 3 * H], &device));
        let params = normal([3 * H * (I + H + 2)], &device);
        let layers = [
            from_burn_gru(&theirs).expect("a plain one"),
            from_keras_gru(kernel, recurrent, bias, ResetGate::After).expect("fits"),
            from_cudnn_gru(params, &GruConfig::new(I, H)).expect("so many"),
        ];
        for (n, layer) in layers.into_iter().enumerate() {
            let grads = layer.forward(x.clone(), None).0.sum().backward();
            let weight = layer.stack.layers[0].weight_hh.val();
            assert!(weight.grad(&grads).is_some(), "{name} {n}");
        }
    }
}
