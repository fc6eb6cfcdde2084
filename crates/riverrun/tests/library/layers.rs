//! Layers against PyTorch, their state where it leaves a call, and minGRU in log space.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Device, Distribution, FloatDType, Tensor};
use riverrun::Sequence;
use riverrun::nn::{
    GruConfig, LstmConfig, MinGruConfig, MinLstmConfig, Recurrent, RgLruConfig, RnnConfig,
};
use riverrun::ops::Candidate;
use serde_json::Value;

use crate::common::{assert_close, devices, numbers};
use crate::golden::{field, tensor};

fn golden() -> Value {
    serde_json::from_str(include_str!("../golden/layers.json")).expect("a JSON file")
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

/// Every parameter in another dtype.
struct Cast(FloatDType);

impl ModuleMapper for Cast {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| tensor.cast(self.0))
    }
}

/// The whole, its chunks, and its steps.
fn three_ways<L: Recurrent>(layer: &L, x: &Tensor<3>) -> [Vec<f64>; 3] {
    let steps = x.dims()[1];
    let cut = |lengths: Vec<usize>| {
        let (mut state, mut parts, mut at) = (None, Vec::new(), 0);
        for length in lengths {
            let chunk = x.clone().narrow(1, at, length);
            let (y, next) = layer.run(chunk, Sequence::from(state));
            parts.push(y);
            state = Some(next);
            at += length;
        }
        numbers(Tensor::cat(parts, 1))
    };
    [vec![steps], vec![1, 17, steps - 18], vec![1; steps]].map(cut)
}

#[test]
fn the_state_that_leaves_a_call_loses_nothing_in_f32_and_f64() {
    let Some((_, device)) = devices().into_iter().find(|(name, _)| name == "cpu") else {
        return;
    };
    for dtype in [FloatDType::F32, FloatDType::F64] {
        let x = Tensor::<3>::random([3, 67, 5], Distribution::Normal(0.0, 1.0), &device);
        let x = x.cast(dtype);
        let check = |what: &str, [whole, chunks, steps]: [Vec<f64>; 3]| {
            assert_eq!(whole, chunks, "{what} {dtype:?}, chunks");
            assert_eq!(whole, steps, "{what} {dtype:?}, steps");
        };
        let lstm = LstmConfig::new(5, 24).with_layers(3).init(&device);
        check("lstm", three_ways(&lstm.map(&mut Cast(dtype)), &x));
        let gru = GruConfig::new(5, 24).with_layers(3).init(&device);
        check("gru", three_ways(&gru.map(&mut Cast(dtype)), &x));
        let rnn = RnnConfig::new(5, 24).with_layers(3).init(&device);
        check("rnn", three_ways(&rnn.map(&mut Cast(dtype)), &x));
    }
}

#[test]
fn rg_lru_agrees_with_pytorch() {
    let golden: Value =
        serde_json::from_str(include_str!("../golden/rg_lru.json")).expect("a JSON file");
    let size = |from: &Value, name: &str| from[name].as_u64().expect("a size") as usize;
    let [b, t, h] = ["batch", "steps", "d_hidden"].map(|name| size(&golden, name));
    for (name, device) in devices() {
        let device = device.autodiff();
        for case in golden["cases"].as_array().expect("cases") {
            let i = size(case, "d_input");
            let mut layer = RgLruConfig::new(i, h).init(&device);
            layer.gates.weight = Param::from_tensor(tensor(case, "weight", [h, 2 * h], &device));
            layer.gates.bias = Some(Param::from_tensor(tensor(case, "bias", [2 * h], &device)));
            layer.lambda = Param::from_tensor(tensor(case, "lam", [h], &device));
            if let Some(input) = &mut layer.input {
                input.weight = Param::from_tensor(tensor(case, "project", [i, h], &device));
                input.bias = None;
            }
            let x = tensor(case, "x", [b, t, i], &device).require_grad();
            let h0 = tensor(case, "h0", [b, h], &device).require_grad();
            let (y, last) = layer.forward(x.clone(), Some(h0.clone()));
            let check = |tensor: &str, found: Vec<f64>| {
                let what = format!("{name} rg-lru from {i}: {tensor}");
                assert_close(&what, &found, &field(case, tensor), TOLERANCE);
            };
            check("y", numbers(y.clone()));
            let d_y = tensor(case, "d_y", [b, t, h], &device);
            let d_last = tensor(case, "d_last", [b, h], &device);
            let grads = ((y * d_y).sum() + (last * d_last).sum()).backward();
            check("d_x", numbers(x.grad(&grads).expect("a gradient")));
            check("d_h0", numbers(h0.grad(&grads).expect("a gradient")));
            let weight = layer.gates.weight.val();
            check(
                "d_weight",
                numbers(weight.grad(&grads).expect("a gradient")),
            );
            let bias = layer.gates.bias.as_ref().expect("a bias").val();
            check("d_bias", numbers(bias.grad(&grads).expect("a gradient")));
            let lambda = layer.lambda.val();
            check("d_lam", numbers(lambda.grad(&grads).expect("a gradient")));
            if let Some(input) = &layer.input {
                let project = input.weight.val();
                check(
                    "d_project",
                    numbers(project.grad(&grads).expect("a gradient")),
                );
            }
        }
    }
}

/// The part of its state that each channel of a fresh RG-LRU keeps in a step with gate `r` open that far.
fn kept(config: RgLruConfig, r: f64, device: &Device) -> Vec<f64> {
    let lambda = numbers(config.init(device).lambda.val());
    let kept = |lambda: f64| (-8.0 * lambda.exp().ln_1p() * r).exp();
    lambda.into_iter().map(kept).collect()
}

#[test]
fn rg_lru_starts_out_remembering() {
    for (name, device) in devices() {
        // Evenly from 0.9 to 0.999 with the gate open, as in the paper.
        let found = kept(RgLruConfig::new(8, 10), 1.0, &device);
        let expected: Vec<f64> = (0..10)
            .map(|i| 0.9 + 0.0099 * (f64::from(i) + 0.5))
            .collect();
        assert_close(&name, &found, &expected, 1e-6);
        // From 1 to 100 steps with the gate half open.
        let found = kept(RgLruConfig::new(8, 10).with_time_scale(100), 0.5, &device);
        let steps: Vec<f64> = found.iter().map(|a| -1.0 / a.ln()).collect();
        let expected: Vec<f64> = (0..10)
            .map(|i| 100f64.powf((f64::from(i) + 0.5) / 10.0))
            .collect();
        assert_close(&name, &steps, &expected, 1e-5);
    }
}

/// `ln g(u)`, `ln(1 + e^u)` and `ln Σ e^x`, as the log-space form has them.
fn ln_g(u: f64) -> f64 {
    if u >= 0.0 {
        (u + 0.5).ln()
    } else {
        -softplus(-u)
    }
}

fn softplus(u: f64) -> f64 {
    u.max(0.0) + (-u.abs()).exp().ln_1p()
}

fn log_sum_exp(x: &[f64]) -> f64 {
    let largest = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    largest + x.iter().map(|x| (x - largest).exp()).sum::<f64>().ln()
}

/// The states of one channel from its logarithms: `ln h_t = A_t + logsumexp(ln h_0, {ln b_j - A_j})`,
/// `A_t = Σ_{j ≤ t} ln a_j`.
fn log_space_scan(ln_a: &[f64], ln_b: &[f64], ln_h0: Option<f64>) -> Vec<f64> {
    let mut sum = 0.0;
    let mut terms = Vec::from_iter(ln_h0);
    let steps = ln_a.iter().zip(ln_b);
    steps
        .map(|(ln_a, ln_b)| {
            sum += ln_a;
            terms.push(ln_b - sum);
            (sum + log_sum_exp(&terms)).exp()
        })
        .collect()
}

/// A layer's states by the log-space formulas in f64, from the same weights `[I, G·H]` and biases.
fn in_log_space(
    gates: usize,
    x: &[f64],
    [b, t, i, h]: [usize; 4],
    weight: &[f64],
    bias: &[f64],
    h0: Option<&[f64]>,
) -> Vec<f64> {
    let k = |row: usize, gate: usize, d: usize| {
        let column = gate * h + d;
        let products = (0..i).map(|n| x[row * i + n] * weight[n * gates * h + column]);
        bias[column] + products.sum::<f64>()
    };
    let mut states = vec![0.0; b * t * h];
    for (s, d) in (0..b).flat_map(|s| (0..h).map(move |d| (s, d))) {
        let (mut ln_a, mut ln_b) = (Vec::new(), Vec::new());
        for row in s * t..(s + 1) * t {
            // minGRU: d = k_z. minLSTM: d = softplus(-k_f) - softplus(-k_i).
            let d_gates = match gates {
                2 => k(row, 0, d),
                _ => softplus(-k(row, 0, d)) - softplus(-k(row, 1, d)),
            };
            ln_a.push(-softplus(d_gates));
            ln_b.push(-softplus(-d_gates) + ln_g(k(row, gates - 1, d)));
        }
        let found = log_space_scan(&ln_a, &ln_b, h0.map(|h0| h0[s * h + d].ln()));
        for (n, state) in found.into_iter().enumerate() {
            states[(s * t + n) * h + d] = state;
        }
    }
    states
}

#[test]
fn candidate_g_is_the_log_space_form_with_the_same_weights() {
    let sizes = [2, 300, 5, 7];
    let [b, t, i, h] = sizes;
    for (name, device) in devices() {
        let x = Tensor::<3>::random([b, t, i], Distribution::Normal(0.0, 2.0), &device);
        // A state of the log-space form is positive.
        let h0 = Tensor::<2>::random([b, h], Distribution::Uniform(0.1, 3.0), &device);
        for start in [None, Some(h0)] {
            let gru = MinGruConfig::new(i, h)
                .with_candidate(Candidate::G)
                .init(&device);
            let lstm = MinLstmConfig::new(i, h)
                .with_candidate(Candidate::G)
                .init(&device);
            let layers = [
                (2, &gru.projection, gru.forward(x.clone(), start.clone())),
                (3, &lstm.projection, lstm.forward(x.clone(), start.clone())),
            ];
            for (gates, projection, (y, last)) in layers {
                let expected = in_log_space(
                    gates,
                    &numbers(x.clone()),
                    sizes,
                    &numbers(projection.weight.val()),
                    &numbers(projection.bias.as_ref().expect("a bias").val()),
                    start.clone().map(numbers).as_deref(),
                );
                let what = format!("{name}, {gates} gates, state {}", start.is_some());
                assert_close(&what, &numbers(y.clone()), &expected, TOLERANCE);
                // A chunk goes on from the state as it is, without another g.
                let rest = x.clone().narrow(1, 100, 200);
                let state = Some(y.narrow(1, 99, 1).squeeze_dim(1));
                let (_, end) = match gates {
                    2 => gru.forward(rest, state),
                    _ => lstm.forward(rest, state),
                };
                assert_close(&what, &numbers(end), &numbers(last), 1e-6);
            }
        }
    }
}
