//! GRU, LSTM and Elman layers: against PyTorch, against `burn::nn`, and against themselves.

mod common;

use burn::backend::Dispatch;
use burn::module::Param;
use burn::tensor::{Bool, Device, Distribution, Tensor, TensorData};
use common::{assert_close, devices, numbers};
use riverrun::nn::{
    CellStack, Gru, GruConfig, Lstm, LstmConfig, LstmState, Recurrent, Rnn, RnnConfig, Sequence,
};
use riverrun::ops::cell::{CellInputs, CellOps, CellOutputGrads, CellSpec, StepInputs};
use riverrun::ops::{
    Activation, Cell, CellRun, CellWeights, Maybe, ResetGate, cell_layer, try_cell_layer,
};
use riverrun::weights::{from_burn_gru, from_burn_lstm, from_pytorch};
use serde_json::Value;

/// The rounding of f32 through products and a few steps, with a margin of about ten.
const TOLERANCE: f64 = 1e-5;

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

fn random<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), device)
}

/// A stack of any kind, with a state of one or two tensors.
#[derive(Debug, Clone)]
enum Net {
    Gru(Gru),
    Lstm(Lstm),
    Rnn(Rnn),
}

type State = (Tensor<3>, Option<Tensor<3>>);

impl Net {
    const KINDS: [&str; 3] = ["gru", "lstm", "rnn"];

    fn new(kind: &str, sizes: [usize; 2], layers: usize, both: bool, device: &Device) -> Self {
        let [i, h] = sizes;
        match kind {
            "lstm" => Net::Lstm(
                LstmConfig::new(i, h)
                    .with_layers(layers)
                    .with_bidirectional(both)
                    .init(device),
            ),
            "gru" | "gru-before" => Net::Gru(
                GruConfig::new(i, h)
                    .with_layers(layers)
                    .with_bidirectional(both)
                    .init(device),
            ),
            _ => {
                let activation = match kind {
                    "rnn-relu" => Activation::Relu,
                    _ => Activation::Tanh,
                };
                Net::Rnn(
                    RnnConfig::new(i, h)
                        .with_layers(layers)
                        .with_bidirectional(both)
                        .with_activation(activation)
                        .init(device),
                )
            }
        }
    }

    fn load(self, path: &str) -> Self {
        let loaded = match self {
            Net::Gru(layer) => from_pytorch(layer, path, "").map(Net::Gru),
            Net::Lstm(layer) => from_pytorch(layer, path, "").map(Net::Lstm),
            Net::Rnn(layer) => from_pytorch(layer, path, "").map(Net::Rnn),
        };
        loaded.unwrap_or_else(|error| panic!("{error}"))
    }

    fn stack(&mut self) -> &mut CellStack {
        match self {
            Net::Gru(layer) => &mut layer.stack,
            Net::Lstm(layer) => &mut layer.stack,
            Net::Rnn(layer) => &mut layer.stack,
        }
    }

    fn run(
        &self,
        x: Tensor<3>,
        state: Option<State>,
        reset: Option<Tensor<2, Bool>>,
        lengths: Option<&[usize]>,
    ) -> (Tensor<3>, State) {
        let plain = |state: Option<State>, reset| Sequence {
            state: state.map(|(h, _)| h),
            reset,
        };
        let result = match self {
            Net::Gru(layer) => layer
                .try_run(x, plain(state, reset), lengths)
                .map(|(y, h)| (y, (h, None))),
            Net::Rnn(layer) => layer
                .try_run(x, plain(state, reset), lengths)
                .map(|(y, h)| (y, (h, None))),
            Net::Lstm(layer) => {
                let state = state.map(|(h, c)| LstmState {
                    h,
                    c: c.expect("a cell state"),
                });
                let sequence = Sequence { state, reset };
                layer
                    .try_run(x, sequence, lengths)
                    .map(|(y, state)| (y, (state.h, Some(state.c))))
            }
        };
        result.unwrap_or_else(|error| panic!("{error}"))
    }
}

#[test]
fn stacks_agree_with_pytorch() {
    let golden: Value = serde_json::from_str(include_str!("golden/cells.json")).expect("JSON");
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
fn composed_steps_agree_with_the_kernels() {
    let (b, t, i, h) = (3, 7, 4, 6);
    for (name, device) in devices() {
        for cell in Cell::all() {
            for reverse in [false, true] {
                let gates = cell.gates() * h;
                let lstm = cell == Cell::Lstm;
                let x = random([b, t, i], &device);
                let (w, u) = (random([gates, i], &device), random([gates, h], &device));
                let (bias_ih, bias_hh) = (random([gates], &device), random([gates], &device));
                let (h0, c0) = (random([b, h], &device), random([b, h], &device));
                let marks: Vec<f32> = (0..b * t)
                    .map(|n| f32::from(u8::from(n % 5 == 3)))
                    .collect();
                let reset = Tensor::<2>::from_data(TensorData::new(marks, [b, t]), &device);
                let give2 = |tensor: &Tensor<2>| tensor.clone().into_dispatch();
                let give1 = |tensor: &Tensor<1>| tensor.clone().into_dispatch();
                let maybe_c = |tensor: &Tensor<2>| match lstm {
                    true => Maybe::Some(give2(tensor)),
                    false => Maybe::None,
                };
                let spec = CellSpec { cell, reverse };
                let layer = || CellInputs::<Dispatch> {
                    x: x.clone().into_dispatch(),
                    w: give2(&w),
                    u: give2(&u),
                    bias_ih: Maybe::Some(give1(&bias_ih)),
                    bias_hh: Maybe::Some(give1(&bias_hh)),
                    h0: Maybe::Some(give2(&h0)),
                    c0: maybe_c(&c0),
                    reset: Maybe::Some(give2(&reset)),
                };
                let xg = x
                    .clone()
                    .reshape([b * t, i])
                    .matmul(w.clone().transpose())
                    .reshape([b, t, gates])
                    + bias_ih.clone().reshape([1, 1, gates]);
                let steps = || StepInputs::<Dispatch> {
                    xg: xg.clone().into_dispatch(),
                    u: give2(&u),
                    bias: Maybe::Some(give1(&bias_hh)),
                    h0: Maybe::Some(give2(&h0)),
                    c0: maybe_c(&c0),
                    reset: Maybe::Some(give2(&reset)),
                };
                let check = |what: &str, found: Vec<f64>, expected: Vec<f64>| {
                    let what = format!("{name} {} reverse {reverse} {what}", cell.name());
                    assert_close(&what, &found, &expected, TOLERANCE);
                };
                let of = |tensor| numbers::<3>(Tensor::from_dispatch(tensor));
                let of2 = |tensor| numbers::<2>(Tensor::from_dispatch(tensor));
                let kernel = Dispatch::cell_layer_forward(layer(), spec, true);
                let composed = Dispatch::cell_steps_forward(steps(), spec, true);
                let kept = match (&kernel.saved, &composed.saved) {
                    (Maybe::Some(kernel), Maybe::Some(composed)) => {
                        check("saved", of(composed.clone()), of(kernel.clone()));
                        true
                    }
                    (Maybe::None, Maybe::None) => false,
                    _ => panic!("{}: one saves and the other does not", cell.name()),
                };
                assert_eq!(kept, !matches!(cell, Cell::Elman { .. }));
                check("h", of(composed.h.clone()), of(kernel.h.clone()));
                check("h_last", of2(composed.h_last), of2(kernel.h_last));
                if let (Maybe::Some(kernel), Maybe::Some(composed)) =
                    (kernel.c_last, composed.c_last)
                {
                    check("c_last", of2(composed), of2(kernel));
                }
                let d_h: Tensor<3> = random([b, t, h], &device);
                let (d_last, d_c): (Tensor<2>, Tensor<2>) =
                    (random([b, h], &device), random([b, h], &device));
                let grads = || CellOutputGrads::<Dispatch> {
                    h: kernel.h.clone(),
                    saved: kernel.saved.clone(),
                    d_h: d_h.clone().into_dispatch(),
                    d_h_last: Maybe::Some(give2(&d_last)),
                    d_c_last: maybe_c(&d_c),
                };
                let kernel = Dispatch::cell_layer_backward(layer(), grads(), spec, true);
                let composed = Dispatch::cell_steps_backward(steps(), grads(), spec);
                let d_xg: Tensor<3> = Tensor::from_dispatch(composed.xg);
                let d_x = d_xg.reshape([b * t, gates]);
                let d_w = d_x
                    .clone()
                    .transpose()
                    .matmul(x.clone().reshape([b * t, i]));
                let d_bias = d_x.clone().sum_dim(0);
                let d_x = d_x.matmul(w.clone());
                let there = |tensor: Maybe<Dispatch>| match tensor {
                    Maybe::Some(tensor) => tensor,
                    Maybe::None => panic!("a gradient is missing"),
                };
                let of1 = |tensor| numbers::<1>(Tensor::from_dispatch(tensor));
                check("d_x", numbers(d_x), of(there(kernel.x)));
                check("d_w", numbers(d_w), of2(kernel.w));
                check("d_u", of2(composed.u), of2(kernel.u));
                check("d_bias_ih", numbers(d_bias), of1(there(kernel.bias_ih)));
                check("d_bias_hh", of1(composed.bias), of1(there(kernel.bias_hh)));
                check("d_h0", of2(composed.h0), of2(there(kernel.h0)));
                if lstm {
                    check("d_c0", of2(there(composed.c0)), of2(there(kernel.c0)));
                }
            }
        }
    }
}

#[test]
fn chunks_and_steps_of_a_stack_agree_with_the_whole() {
    let (b, t, i, h) = (2, 23, 5, 9);
    for (name, device) in devices() {
        for kind in Net::KINDS {
            let net = Net::new(kind, [i, h], 2, false, &device);
            let x: Tensor<3> = random([b, t, i], &device);
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
            let x: Tensor<3> = random([2, t, i], &device);
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
            let clean: Tensor<3> = random([b, t, i], &device);
            let past: Vec<bool> = (0..b * t).map(|n| n % t >= lengths[n / t]).collect();
            let past = Tensor::<3, Bool>::from_data(TensorData::new(past, [b, t, 1]), &device);
            let dirty = clean
                .clone()
                .mask_fill(past.expand([b, t, i]), f32::NAN)
                .require_grad();
            let state = (
                random([4, b, h], &device),
                (kind == "lstm").then(|| random([4, b, h], &device)),
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
fn a_layer_of_burn_gives_the_same() {
    let (b, t, i, h) = (3, 11, 5, 8);
    for (name, device) in devices() {
        let x: Tensor<3> = random([b, t, i], &device);
        let state: Tensor<2> = random([b, h], &device);
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
        let cell: Tensor<2> = random([b, h], &device);
        let (expected, end) = theirs.forward(
            x.clone(),
            Some(burn::nn::LstmState::new(cell.clone(), state.clone())),
        );
        let start = LstmState {
            h: state.unsqueeze_dim(0),
            c: cell.unsqueeze_dim(0),
        };
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

#[test]
fn no_steps_give_the_initial_state_and_its_gradient() {
    for (name, device) in devices() {
        if name != "cpu" {
            continue;
        }
        let device = device.autodiff();
        let layer = LstmConfig::new(3, 4).init(&device);
        let state = LstmState {
            h: random([1, 2, 4], &device).require_grad(),
            c: random([1, 2, 4], &device).require_grad(),
        };
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
        let x: Tensor<3> = random([b, t, i], &device);
        let weights = net.stack.layers[0].weights();
        let full = cell_layer(x.clone(), weights.clone(), Cell::Lstm, CellRun::default());
        for (dtype, epsilon) in [(FloatDType::F16, 1e-3), (FloatDType::BF16, 8e-3)] {
            if name != "cpu" {
                println!("skipped on {name}: {dtype:?} may not be there");
                continue;
            }
            let rounded = CellWeights {
                weight_ih: weights.weight_ih.clone().cast(dtype),
                weight_hh: weights.weight_hh.clone().cast(dtype),
                bias_ih: weights.bias_ih.clone().map(|bias| bias.cast(dtype)),
                bias_hh: weights.bias_hh.clone().map(|bias| bias.cast(dtype)),
            };
            let half = cell_layer(
                x.clone().cast(dtype),
                rounded,
                Cell::Lstm,
                CellRun::default(),
            );
            let what = format!("{name} {dtype:?}");
            assert_close(
                &what,
                &numbers(half.h),
                &numbers(full.h.clone()),
                4.0 * epsilon,
            );
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
        let refused = |x: Tensor<3>, weights: CellWeights, run: CellRun| {
            let error = try_cell_layer(x, weights, gru, run).expect_err("does not fit");
            error.to_string()
        };
        let wide = Tensor::<3>::zeros([2, 5, 7], &device);
        let error = refused(wide, weights(), CellRun::default());
        assert!(
            error.contains("weight_ih") && error.contains("[12, 7]"),
            "{error}"
        );
        let state = || Some(Tensor::<2>::zeros([2, 4], &device));
        let run = CellRun {
            c0: state(),
            ..CellRun::default()
        };
        assert!(refused(x.clone(), weights(), run).contains("c0"));
        let run = CellRun {
            h0: Some(Tensor::zeros([3, 4], &device)),
            ..CellRun::default()
        };
        assert!(refused(x.clone(), weights(), run).contains("h0"));
        let long = layer.try_run(x.clone(), Sequence::new(), Some([5, 6].as_slice()));
        let error = long.expect_err("too long").to_string();
        assert!(error.contains("sequence 1 has 6 steps"), "{error}");
        let few = layer.try_run(x, Sequence::new(), Some([5].as_slice()));
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
