//! Against PyTorch and `burn::nn`.

use burn::tensor::Tensor;
use riverrun::nn::{LstmState, Recurrent};
use riverrun::ops::{Cell, ResetGate};
use riverrun::weights::{from_burn_gru, from_burn_lstm};
use serde_json::Value;

use super::net::{Net, TOLERANCE};
use crate::common::{assert_close, devices, numbers};
use crate::golden::{field, tensor};
use crate::normal;

#[test]
fn stacks_agree_with_pytorch() {
    let golden: Value =
        serde_json::from_str(include_str!("../../golden/cells.json")).expect("JSON");
    let size = |name: &str| golden[name].as_u64().expect("a size") as usize;
    let (b, t, i, h) = (
        size("batch"),
        size("steps"),
        size("d_input"),
        size("d_hidden"),
    );
    for (device_name, device) in devices() {
        let device = device.autodiff();
        for case in golden["cases"].as_array().expect("cases") {
            let text = |name: &str| case[name].as_str().expect("a string").to_string();
            let layers = case["layers"].as_u64().expect("a number") as usize;
            let both = case["bidirectional"].as_bool().expect("a flag");
            let directions = 1 + usize::from(both);
            let lengths: Option<Vec<usize>> = case["lengths"].as_array().map(|list| {
                list.iter()
                    .map(|x| x.as_u64().expect("a length") as usize)
                    .collect()
            });
            let path = format!(
                "{}/tests/golden/cells/{}.pt",
                env!("CARGO_MANIFEST_DIR"),
                text("name")
            );
            let mut net = Net::new(&text("kind"), [i, h], layers, both, &device).load(&path);
            if text("kind") == "gru-before" {
                net.stack().layers[0].cell = Cell::Gru {
                    reset: ResetGate::Before,
                };
            }
            let states = [layers * directions, b, h];
            let x = tensor(case, "x", [b, t, i], &device).require_grad();
            let h0 = tensor(case, "h0", states, &device).require_grad();
            let c0 = case
                .get("c0")
                .map(|_| tensor(case, "c0", states, &device).require_grad());
            let start = Some((h0.clone(), c0.clone()));
            let (y, (h_n, c_n)) = net.run(x.clone(), start, None, lengths.as_deref());
            let check = |name: &str, found: Vec<f64>, expected: Vec<f64>| {
                let what = format!("{device_name} {} {name}", text("name"));
                assert_close(&what, &found, &expected, TOLERANCE);
            };
            check("y", numbers(y.clone()), field(case, "y"));
            check("h_n", numbers(h_n.clone()), field(case, "h_n"));
            let d_y = tensor(case, "d_y", [b, t, directions * h], &device);
            let d_h_n = tensor(case, "d_h_n", states, &device);
            let mut loss = (y * d_y).sum() + (h_n * d_h_n).sum();
            if let Some(c_n) = c_n {
                check("c_n", numbers(c_n.clone()), field(case, "c_n"));
                loss = loss + (c_n * tensor(case, "d_c_n", states, &device)).sum();
            }
            let grads = loss.backward();
            let of = |tensor: &Tensor<3>| numbers(tensor.grad(&grads).expect("a gradient"));
            check("d_x", of(&x), field(case, "d_x"));
            check("d_h0", of(&h0), field(case, "d_h0"));
            if let Some(c0) = &c0 {
                check("d_c0", of(c0), field(case, "d_c0"));
            }
            for (index, layer) in net.stack().layers.iter().enumerate() {
                let reverse = if index % directions == 1 {
                    "_reverse"
                } else {
                    ""
                };
                let weights = layer.weights();
                let matrix = |tensor: &Tensor<2>| numbers(tensor.grad(&grads).expect("a gradient"));
                let vector = |tensor: &Option<Tensor<1>>| {
                    let tensor = tensor.as_ref().expect("a bias");
                    numbers(tensor.grad(&grads).expect("a gradient"))
                };
                for (name, found) in [
                    ("weight_ih", matrix(&weights.weight_ih)),
                    ("weight_hh", matrix(&weights.weight_hh)),
                    ("bias_ih", vector(&weights.bias_ih)),
                    ("bias_hh", vector(&weights.bias_hh)),
                ] {
                    let name = format!("{name}_l{}{reverse}", index / directions);
                    check(&name, found, field(&case["d_weights"], &name));
                }
            }
        }
    }
}

#[test]
fn a_layer_of_burn_gives_the_same() {
    let (b, t, i, h) = (3, 11, 5, 8);
    for (name, device) in devices() {
        let x: Tensor<3> = normal([b, t, i], &device);
        let state: Tensor<2> = normal([b, h], &device);
        for (after, bias) in [(true, true), (true, false), (false, true)] {
            let theirs = burn::nn::GruConfig::new(i, h, bias)
                .with_reset_after(after)
                .init(&device);
            let ours = from_burn_gru(&theirs).expect("a plain GRU");
            let expected = theirs.forward(x.clone(), Some(state.clone()));
            let (found, _) = ours.forward(x.clone(), Some(state.clone().unsqueeze_dim(0)));
            let what = format!("{name} gru after {after} bias {bias}");
            assert_close(&what, &numbers(found), &numbers(expected), TOLERANCE);
        }
        let theirs = burn::nn::LstmConfig::new(i, h, true).init(&device);
        let ours = from_burn_lstm(&theirs).expect("a plain LSTM");
        let cell: Tensor<2> = normal([b, h], &device);
        let (expected, end) = theirs.forward(
            x.clone(),
            Some(burn::nn::LstmState::new(cell.clone(), state.clone())),
        );
        let start = LstmState::new(state.unsqueeze_dim(0), cell.unsqueeze_dim(0));
        let (found, last) = ours.forward(x, Some(start));
        let what = format!("{name} lstm");
        assert_close(&what, &numbers(found), &numbers(expected), TOLERANCE);
        assert_close(&what, &numbers(last.h), &numbers(end.hidden), TOLERANCE);
        assert_close(&what, &numbers(last.c), &numbers(end.cell), TOLERANCE);
        let clipped = burn::nn::GruConfig::new(i, h, true)
            .with_clip(Some(1.0))
            .init(&device);
        let error = from_burn_gru(&clipped).expect_err("clipping is not here");
        assert!(error.to_string().contains("clips"), "{error}");
    }
}
