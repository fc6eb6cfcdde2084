//! Layers of several heads against layers whose recurrent matrix has zeros between the heads.

use burn::tensor::{Bool, Device, Tensor, TensorData};
use riverrun::nn::{GruConfig, LstmConfig, Recurrent};
use riverrun::ops::{Cell, CellOptions, CellState, CellWeights, cell_layer};
use riverrun::weights::to_pytorch;
use riverrun::{Error, Sequence};

use super::net::TOLERANCE;
use crate::common::{assert_close, devices, numbers};
use crate::normal;

const B: usize = 3;
const T: usize = 5;
const I: usize = 4;
const HEADS: usize = 3;
const OWN: usize = 2;
const H: usize = HEADS * OWN;

/// `[G·H, H/N]` as `[G·H, H]`.
fn dense(u: Tensor<2>, gates: usize) -> Tensor<2> {
    let blocks = u.reshape([gates, HEADS, OWN, OWN]);
    let rows = (0..HEADS).map(|head| {
        let block = blocks.clone().narrow(1, head, 1).reshape([gates, OWN, OWN]);
        let zeros = |width: usize| Tensor::<3>::zeros([gates, OWN, width], &blocks.device());
        let parts = [zeros(head * OWN), block, zeros(H - (head + 1) * OWN)];
        let parts = parts.into_iter().filter(|part| part.dims()[2] > 0);
        Tensor::cat(parts.collect(), 2)
    });
    Tensor::cat(rows.collect(), 1).reshape([gates * H, H])
}

/// Every output, and the gradient of every input.
fn everything(
    cell: Cell,
    reverse: bool,
    device: &Device,
    run: impl Fn(
        Tensor<3>,
        CellWeights,
        Cell,
        Sequence<CellState>,
        CellOptions,
    ) -> (Tensor<3>, CellState),
) -> Vec<Vec<f64>> {
    let gates = cell.gates();
    let leaf = |n: usize, len: usize| {
        let values = (0..len).map(|i| ((i * 37 + n * 101) % 29) as f32 / 29.0 - 0.5);
        let values = TensorData::new(values.collect::<Vec<_>>(), [len]);
        Tensor::<1>::from_data(values, device).require_grad()
    };
    let leaves = [
        leaf(0, B * T * I),
        leaf(1, gates * H * I),
        leaf(2, gates * H * OWN),
        leaf(3, gates * H),
        leaf(4, gates * H),
        leaf(5, B * H),
        leaf(6, B * H),
    ];
    let [x, w, u, bias_ih, bias_hh, h0, c0] = leaves.clone();
    let marks: Vec<bool> = (0..B * T).map(|i| i % 7 == 3).collect();
    let weights = CellWeights::new(w.reshape([gates * H, I]), u.reshape([gates * H, OWN]))
        .with_biases(Some(bias_ih), Some(bias_hh))
        .with_heads(HEADS);
    let state = CellState::new(h0.reshape([B, H]));
    let state = match cell {
        Cell::Lstm => state.with_c(c0.reshape([B, H])),
        _ => state,
    };
    let reset = Tensor::<2, Bool>::from_data(TensorData::new(marks, [B, T]), device);
    let sequence = Sequence::new().with_state(state).with_reset(reset);
    let options = CellOptions::new().with_reverse(reverse);
    let (h, last) = run(x.reshape([B, T, I]), weights, cell, sequence, options);
    let mut loss = (h.clone() * h.clone()).sum() + last.h.clone().sum();
    let mut all = vec![numbers(h), numbers(last.h)];
    if let Some(c_last) = last.c {
        loss = loss + (c_last.clone() * c_last.clone()).sum();
        all.push(numbers(c_last));
    }
    let grads = loss.backward();
    all.extend(
        leaves
            .iter()
            .filter_map(|leaf| leaf.grad(&grads))
            .map(numbers),
    );
    all
}

#[test]
fn heads_are_blocks_on_the_diagonal() {
    for (name, device) in devices() {
        let device = device.autodiff();
        for (n, cell) in Cell::all().into_iter().enumerate() {
            let reverse = n % 2 == 1;
            let found = everything(
                cell,
                reverse,
                &device,
                |x, weights, cell, sequence, options| {
                    cell_layer(x, weights, cell, sequence, options).unwrap()
                },
            );
            let expected = everything(
                cell,
                reverse,
                &device,
                |x, mut weights, cell, sequence, options| {
                    weights.weight_hh = dense(weights.weight_hh, cell.gates());
                    cell_layer(x, weights.with_heads(1), cell, sequence, options).unwrap()
                },
            );
            assert_eq!(found.len(), expected.len());
            for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let what = format!("{name} {} tensor {i}", cell.name());
                assert_close(&what, found, expected, TOLERANCE);
            }
        }
    }
}

#[test]
fn a_layer_of_heads_goes_on_step_by_step() {
    for (name, device) in devices() {
        let lstm = LstmConfig::new(I, H)
            .with_heads(HEADS)
            .with_layers(2)
            .init(&device);
        assert_eq!(lstm.stack.layers[1].weight_hh.dims(), [4 * H, OWN]);
        let x: Tensor<3> = normal([B, T, I], &device);
        let (whole, _) = lstm.forward(x.clone(), None);
        assert_eq!(whole.dims(), [B, T, H]);
        let mut state = None;
        for t in 0..T {
            let (y, next) = lstm.step(x.clone().narrow(1, t, 1).squeeze_dim(1), state);
            let expected = numbers(whole.clone().narrow(1, t, 1));
            assert_close(&format!("{name} step {t}"), &numbers(y), &expected, 1e-6);
            state = Some(next);
        }
    }
}

#[test]
fn what_heads_do_not_do_is_an_error() {
    let (_, device) = devices().into_iter().next().expect("a device");
    let gru = GruConfig::new(I, H).with_heads(HEADS).init(&device);
    assert!(matches!(gru.stack.stream(1), Err(Error::Unsupported(_))));
    let file = std::env::temp_dir().join("riverrun-heads.safetensors");
    let refused = to_pytorch(&gru, &file, "");
    assert!(matches!(refused, Err(Error::Unsupported(_))));

    let mut weights = gru.stack.layers[0].weights();
    weights.weight_hh = Tensor::zeros([3 * H, OWN + 2], &device);
    let x = Tensor::<3>::zeros([1, 1, I], &device);
    let cell = gru.stack.layers[0].cell;
    let run = |weights| {
        let x = x.clone();
        cell_layer(x, weights, cell, Sequence::new(), CellOptions::new())
    };
    let refused = run(weights.clone());
    assert!(matches!(
        refused,
        Err(Error::Shape {
            what: "weight_hh",
            ..
        })
    ));
    // The shape of three heads, said to be one.
    weights.weight_hh = Tensor::zeros([3 * H, OWN], &device);
    let refused = run(weights.clone().with_heads(1));
    assert!(matches!(
        refused,
        Err(Error::Shape {
            what: "weight_hh",
            ..
        })
    ));
    let refused = run(weights.with_heads(4));
    assert!(matches!(refused, Err(Error::Unsupported(_))));
}

#[test]
#[should_panic(expected = "multiple of the heads")]
fn heads_divide_the_units() {
    let (_, device) = devices().into_iter().next().expect("a device");
    GruConfig::new(I, 7).with_heads(2).init(&device);
}
