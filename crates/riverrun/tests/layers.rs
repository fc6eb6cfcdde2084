//! Layers against PyTorch, and a layer's three uses against each other: sequence, chunks, single steps.

mod common;

use burn::module::Param;
use burn::tensor::{Bool, Device, Distribution, Tensor, TensorData};
use common::{assert_close, devices, numbers};
use riverrun::models::{CellKind, CellState};
use riverrun::nn::{MinGruConfig, MinLstmConfig, Recurrent, Sequence};
use riverrun::ops::Candidate;
use serde_json::Value;

fn golden() -> Value {
    serde_json::from_str(include_str!("golden/layers.json")).expect("a JSON file")
}

fn field(case: &Value, name: &str) -> Vec<f64> {
    let list = case[name].as_array().expect("a list");
    list.iter().map(|x| x.as_f64().expect("a number")).collect()
}

fn tensor<const D: usize>(
    case: &Value,
    name: &str,
    shape: [usize; D],
    device: &Device,
) -> Tensor<D> {
    let data: Vec<f32> = field(case, name).into_iter().map(|x| x as f32).collect();
    Tensor::from_data(TensorData::new(data, shape), device)
}

/// The rounding of f32 through two products and seven steps, with a margin of about ten.
const TOLERANCE: f64 = 1e-5;

#[test]
fn layers_agree_with_pytorch() {
    let golden = golden();
    let size = |name: &str| golden[name].as_u64().expect("a size") as usize;
    let (b, t, i, h) = (
        size("batch"),
        size("steps"),
        size("d_input"),
        size("d_hidden"),
    );
    for (name, device) in devices() {
        let device = device.autodiff();
        for case in golden["cases"].as_array().expect("cases") {
            let candidate = match case["candidate"].as_str() {
                Some("tanh") => Candidate::Tanh,
                Some("g") => Candidate::G,
                _ => Candidate::Identity,
            };
            let gru = case["kind"] == "min-gru";
            let groups = if gru { 2 } else { 3 };
            let weight = tensor(case, "weight", [i, groups * h], &device);
            let bias = tensor(case, "bias", [groups * h], &device);
            let x = tensor(case, "x", [b, t, i], &device).require_grad();
            let h0 = tensor(case, "h0", [b, h], &device).require_grad();
            let sequence = Sequence::from(Some(h0.clone()));
            let (projection, (y, last)) = if gru {
                let mut layer = MinGruConfig::new(i, h)
                    .with_candidate(candidate)
                    .init(&device);
                layer.projection.weight = Param::from_tensor(weight);
                layer.projection.bias = Some(Param::from_tensor(bias));
                (layer.projection.clone(), layer.run(x.clone(), sequence))
            } else {
                let mut layer = MinLstmConfig::new(i, h)
                    .with_candidate(candidate)
                    .init(&device);
                layer.projection.weight = Param::from_tensor(weight);
                layer.projection.bias = Some(Param::from_tensor(bias));
                (layer.projection.clone(), layer.run(x.clone(), sequence))
            };
            let what =
                |tensor: &str| format!("{name} {} {} {tensor}", case["kind"], case["candidate"]);
            assert_close(
                &what("y"),
                &numbers(y.clone()),
                &field(case, "y"),
                TOLERANCE,
            );
            let d_y = tensor(case, "d_y", [b, t, h], &device);
            let d_last = tensor(case, "d_last", [b, h], &device);
            let grads = ((y * d_y).sum() + (last * d_last).sum()).backward();
            let check = |tensor: &str, found: Vec<f64>| {
                assert_close(&what(tensor), &found, &field(case, tensor), TOLERANCE);
            };
            check("d_x", numbers(x.grad(&grads).expect("a gradient")));
            check("d_h0", numbers(h0.grad(&grads).expect("a gradient")));
            check(
                "d_weight",
                numbers(projection.weight.val().grad(&grads).expect("a gradient")),
            );
            let bias = projection.bias.expect("a bias").val();
            check("d_bias", numbers(bias.grad(&grads).expect("a gradient")));
        }
    }
}

#[test]
fn sequence_chunks_and_steps_agree() {
    let (b, t, i, h) = (3, 67, 5, 24);
    for (name, device) in devices() {
        for kind in CellKind::ALL {
            let layer = kind.init(i, h, true, 32, &device);
            let x = Tensor::<3>::random([b, t, i], Distribution::Normal(0.0, 1.0), &device);
            let (whole, last) = layer.run(x.clone(), Sequence::new());
            let mut state = None;
            let mut parts = Vec::new();
            for (start, len) in [(0, 1), (1, 31), (32, 35)] {
                let chunk = x.clone().narrow(1, start, len);
                let (y, next) = layer.run(chunk, Sequence::from(state));
                parts.push(y);
                state = Some(next);
            }
            let what = format!("{name} {kind}");
            let chunked = numbers(Tensor::cat(parts, 1));
            assert_close(
                &format!("{what}, chunks"),
                &chunked,
                &numbers(whole.clone()),
                1e-6,
            );
            let end = state.expect("a state");
            let name = format!("{what}, last state");
            assert_close(&name, &numbers(end.h), &numbers(last.h), 1e-6);
            assert_eq!(end.c.is_some(), last.c.is_some(), "{name}");
            if let (Some(end), Some(last)) = (end.c, last.c) {
                assert_close(&name, &numbers(end), &numbers(last), 1e-6);
            }
            let mut state = None;
            for s in 0..t {
                let step = x.clone().narrow(1, s, 1).squeeze_dim(1);
                let (y, next) = layer.step(step, state);
                let expected = numbers(whole.clone().narrow(1, s, 1));
                assert_close(&format!("{what}, step {s}"), &numbers(y), &expected, 1e-6);
                state = Some(next);
            }
        }
    }
}

#[test]
fn a_reset_starts_anew_and_stops_gradients() {
    let (b, t, i, h) = (2, 9, 3, 4);
    for (name, device) in devices() {
        let device = device.autodiff();
        for kind in CellKind::ALL {
            let layer = kind.init(i, h, true, 1, &device);
            let x = Tensor::<3>::random([b, t, i], Distribution::Normal(0.0, 1.0), &device);
            let mask: Vec<bool> = (0..b * t).map(|n| n % t == 5).collect();
            let mask = Tensor::<2, Bool>::from_data(TensorData::new(mask, [b, t]), &device);
            let h0 = Tensor::<2>::ones([b, h], &device).require_grad();
            let c = (kind == CellKind::Lstm).then(|| h0.clone());
            let start = CellState { h: h0.clone(), c };
            let sequence = Sequence::from(Some(start)).with_reset(mask);
            let (y, last) = layer.run(x.clone(), sequence.clone());
            let (anew, _) = layer.run(x.clone().narrow(1, 5, 4), Sequence::new());
            let tail = numbers(y.narrow(1, 5, 4));
            assert_close(&format!("{name} {kind}"), &tail, &numbers(anew), 1e-6);
            // Nothing after the reset depends on h0; what lies before it does.
            let grads = last.h.sum().backward();
            let through = numbers(h0.grad(&grads).expect("a gradient"));
            assert!(
                through.iter().all(|&g| g == 0.0),
                "{name} {kind}: {through:?}"
            );
            // A graph is walked once, so the forward pass is made again.
            let (y, _) = layer.run(x, sequence);
            let grads = y.narrow(1, 4, 1).sum().backward();
            let before = numbers(h0.grad(&grads).expect("a gradient"));
            assert!(before.iter().any(|&g| g != 0.0), "{name} {kind}");
        }
    }
}
