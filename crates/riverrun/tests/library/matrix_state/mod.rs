//! Layers on matrix states, and the sLSTM: against their formulas in f64, one step after the other; in chunks, with resets and
//! lengths, and what they refuse.

mod composed;
mod delta_net;
mod gated_delta_net;
mod gla;
mod hgrn2;
mod kda;
mod mamba2;
mod mlstm;
mod parts;
mod ret_net;
mod rwkv6;
mod rwkv7;
mod slopes;
mod slstm;

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Bool, DType, Device, Tensor, TensorData};
use riverrun::Sequence;
use riverrun::nn::Recurrent;

use crate::common::{assert_close, devices, numbers};
use crate::normal;
use crate::parameters::parameters;
use parts::{Part, Parts};

/// Sequences, steps, features.
const SIZES: [usize; 3] = [2, 11, 6];

/// The rounding of f32 through the projections, a norm and eleven steps, with a margin of about ten.
const SINGLE: f64 = 2e-5;
/// The same in f64.
const DOUBLE: f64 = SINGLE / (1u64 << 29) as f64;

/// Some ten roundings to bf16 one after the other: projection, convolution, SiLU, norm, recurrence, norm, gate, projection.
const HALF: f64 = 10.0 / (1u64 << 9) as f64;

/// Every parameter on a device, in a dtype.
struct Moved<'a>(&'a Device, DType);

impl ModuleMapper for Moved<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        Param::from_tensor(moved(param.val(), self.0, self.1))
    }
}

/// Every parameter as a wave.
struct Waves(usize);

impl ModuleMapper for Waves {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.0 += 1;
        Param::from_tensor(wave(param.dims(), self.0, &param.device()))
    }
}

/// Numbers from -1 to 1, the same in every run, others for each `stream`.
fn wave<const D: usize>(shape: [usize; D], stream: usize, device: &Device) -> Tensor<D> {
    let number = |i: usize| ((i * i * 31 + i * 37 + stream * 11) % 61) as f32 / 30.0 - 1.0;
    let data: Vec<f32> = (0..shape.iter().product()).map(number).collect();
    Tensor::from_data(TensorData::new(data, shape), device)
}

fn moved<const D: usize>(x: Tensor<D>, device: &Device, dtype: DType) -> Tensor<D> {
    Tensor::from_data(x.into_data().convert_dtype(dtype), (device, dtype))
}

/// The inputs of a layer, as numbers for any device.
struct Inputs<S> {
    x: Tensor<3>,
    state: S,
    d_y: Tensor<3>,
    d_state: S,
    /// `[B, T]`.
    reset: Vec<bool>,
}

impl<S: Parts> Inputs<S> {
    fn new<L: Recurrent<State = S>>(layer: &L, device: &Device) -> Self {
        let [batch, steps, features] = SIZES;
        let x = wave([batch, steps, features], 100, device);
        let (y, state) = layer.forward(x.clone(), None);
        let like = |stream: usize| {
            let parts = state.parts().into_iter().enumerate();
            state.with(
                parts
                    .map(|(i, part)| wave(part.tensor.dims(), stream + i, device))
                    .collect(),
            )
        };
        Self {
            x,
            d_y: wave(y.dims(), 101, device),
            d_state: like(102),
            state: like(104).started(),
            reset: (0..batch * steps).map(|i| i % 9 == 5).collect(),
        }
    }

    /// What bf16 makes of the input and the narrow parts of the state.
    fn rounded(self) -> Self {
        fn rounded<const D: usize>(x: Tensor<D>) -> Tensor<D> {
            x.cast(DType::BF16).cast(DType::F32)
        }
        let parts = self.state.parts().into_iter().map(|part| match part.wide {
            true => part.tensor,
            false => rounded(part.tensor),
        });
        Self {
            x: rounded(self.x),
            state: self.state.with(parts.collect()),
            ..self
        }
    }

    fn reset(&self, device: &Device) -> Tensor<2, Bool> {
        let [batch, steps, _] = SIZES;
        Tensor::from_data(TensorData::new(self.reset.clone(), [batch, steps]), device)
    }
}

/// The loss of the inputs' gradients, the output and the last state, from an input and the tensors of a state.
fn loss_of<L, S: Parts>(
    layer: &L,
    inputs: &Inputs<S>,
    (device, dtype): (&Device, DType),
    (x, start): (Tensor<3>, Vec<Tensor<4>>),
    run: impl Fn(&L, Tensor<3>, Sequence<S>) -> (Tensor<3>, S),
) -> (Tensor<1>, Tensor<3>, S) {
    let sequence = Sequence::new()
        .with_state(inputs.state.with(start))
        .with_reset(inputs.reset(device));
    let (y, last) = run(layer, x, sequence);
    let d_y = moved(inputs.d_y.clone(), device, dtype);
    let mut loss = (y.clone() * d_y).sum().cast(wide(dtype));
    for (part, d) in last.unscaled().parts().iter().zip(inputs.d_state.parts()) {
        if part.differentiable {
            let d = moved(d.tensor, device, part.tensor.dtype());
            loss = loss + (part.tensor.clone() * d).sum().cast(wide(dtype));
        }
    }
    (loss, y, last)
}

/// The dtype of states beside inputs of this one.
fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F64 => dtype,
        _ => DType::F32,
    }
}

/// Outputs, last state and all gradients, by name; how many are outputs and state.
fn results<L: Module, S: Parts>(
    layer: &L,
    inputs: &Inputs<S>,
    (device, dtype): (&Device, DType),
    run: impl Fn(&L, Tensor<3>, Sequence<S>) -> (Tensor<3>, S),
) -> (Vec<(String, Vec<f64>)>, usize) {
    let at = |part: &Part| if part.wide { wide(dtype) } else { dtype };
    let x = moved(inputs.x.clone(), device, dtype).require_grad();
    let start = inputs.state.parts().into_iter();
    let start: Vec<Tensor<4>> = start
        .map(|part| moved(part.tensor.clone(), device, at(&part)).require_grad())
        .collect();
    let leaves = (x.clone(), start.clone());
    let (loss, y, last) = loss_of(layer, inputs, (device, dtype), leaves, run);
    let of = loss.backward();
    let mut found = vec![("y".into(), numbers(y))];
    for part in last.parts() {
        found.push((format!("last {}", part.name), numbers(part.tensor)));
    }
    let outputs = found.len();
    found.push(("d_x".into(), numbers(x.grad(&of).expect("a gradient"))));
    for (part, leaf) in last.parts().iter().zip(start) {
        if part.differentiable {
            let gradient = numbers(leaf.grad(&of).expect("a gradient"));
            found.push((format!("d_{}", part.name), gradient));
        }
    }
    found.extend(parameters(layer, Some(&of)));
    (found, outputs)
}

/// The layer over five steps and over the others, with the state handed on.
fn in_two<L: Recurrent>(
    layer: &L,
    x: Tensor<3>,
    sequence: Sequence<L::State>,
) -> (Tensor<3>, L::State) {
    let [_, steps, _] = x.dims();
    let reset = sequence.reset.expect("resets");
    let piece = |from, length, state| {
        let start = Sequence::new().with_state(state);
        let start = start.with_reset(reset.clone().narrow(1, from, length));
        layer.run(x.clone().narrow(1, from, length), start)
    };
    let (first, state) = piece(0, 5, sequence.state.expect("a state"));
    let (second, last) = piece(5, steps - 5, state);
    (Tensor::cat(vec![first, second], 1), last)
}

/// The layer is its formulas: in f64, whole and in pieces, and in bf16 on the CPU, and in f32 on every device.
fn agrees<S: Parts, L: Module + Recurrent<State = S>>(
    what: &str,
    make: impl Fn(&Device) -> L,
    formulas: impl Fn(&L, Tensor<3>, Sequence<S>) -> (Tensor<3>, S),
) {
    let Some((_, cpu)) = devices().into_iter().find(|(name, _)| name == "cpu") else {
        return;
    };
    let layer = make(&cpu).map(&mut Waves(0));
    let inputs = Inputs::new(&layer, &cpu);
    let oracle = (&cpu.clone().autodiff(), DType::F64);
    let exact = layer.clone().map(&mut Moved(oracle.0, oracle.1));
    let (expected, outputs) = results(&exact, &inputs, oracle, &formulas);
    let check = |what: &str, found: Vec<(String, Vec<f64>)>, tolerance: f64| {
        assert_eq!(found.len(), expected.len());
        for ((name, found), (_, expected)) in found.iter().zip(&expected) {
            assert_close(&format!("{what}: {name}"), found, expected, tolerance);
        }
    };
    let run = |layer: &L, x, sequence| layer.run(x, sequence);
    let found = results(&exact, &inputs, oracle, run).0;
    check(&format!("{what} f64"), found, DOUBLE);
    let found = results(&exact, &inputs, oracle, in_two).0;
    check(&format!("{what} f64, in pieces"), found, DOUBLE);
    slopes::agree(what, &exact, &inputs, oracle);
    for (name, device) in devices() {
        let place = (&device.autodiff(), DType::F32);
        let layer = layer.clone().map(&mut Moved(place.0, place.1));
        let found = results(&layer, &inputs, place, run).0;
        check(&format!("{what} {name}"), found, SINGLE);
    }
    // The formulas of what bf16 makes of weights and inputs.
    let place = (oracle.0, DType::BF16);
    let (rough, inputs) = (
        layer.clone().map(&mut Moved(place.0, place.1)),
        inputs.rounded(),
    );
    let exact = rough.clone().map(&mut Moved(oracle.0, oracle.1));
    let (expected_rough, _) = results(&exact, &inputs, oracle, formulas);
    let found = results(&rough, &inputs, place, run).0;
    for ((name, found), (_, expected)) in found.iter().zip(&expected_rough).take(outputs) {
        let what = format!("{what} bf16: {name}");
        assert_close(&what, found, expected, HALF);
    }
    let finite = |(_, x): &(String, Vec<f64>)| x.iter().all(|x| x.is_finite());
    assert!(found.iter().all(finite), "{what} bf16: gradients");
}

/// Both states are the same.
#[track_caller]
fn same<S: Parts>(what: &str, found: &S, expected: &S, tolerance: f64) {
    assert_eq!(found.positions(), expected.positions(), "{what}");
    for (found, expected) in found.parts().into_iter().zip(expected.parts()) {
        let what = format!("{what}: last {}", found.name);
        let (found, expected) = (numbers(found.tensor), numbers(expected.tensor));
        assert_close(&what, &found, &expected, tolerance);
    }
}

/// A sequence, its chunks and its steps are the same, bit for bit on the CPU; a reset starts a sequence of its own, and padding
/// changes nothing.
fn runs_in_pieces<S: Parts, L: Module + Recurrent<State = S>>(
    what: &str,
    make: impl Fn(&Device) -> L,
) {
    let [batch, steps, _] = SIZES;
    for (name, device) in devices() {
        let layer = make(&device);
        let x = normal(SIZES, &device);
        let (whole, end) = layer.forward(x.clone(), None);
        let tolerance = if name == "cpu" { 0.0 } else { SINGLE };
        for lengths in [vec![1, 2, 5, 3], vec![1; steps]] {
            let (mut state, mut parts, mut at) = (None, Vec::new(), 0);
            for length in lengths {
                let part = x.clone().narrow(1, at, length);
                let (y, next) = match length {
                    1 => {
                        let (y, next) = layer.step(part.squeeze_dim(1), state);
                        (y.unsqueeze_dim(1), next)
                    }
                    _ => layer.forward(part, state),
                };
                parts.push(y);
                (state, at) = (Some(next), at + length);
            }
            let what = format!("{what} {name}, chunks");
            let (parts, state) = (numbers(Tensor::cat(parts, 1)), state.expect("a state"));
            assert_close(&what, &parts, &numbers(whole.clone()), tolerance);
            same(&what, &state, &end, tolerance);
        }
        // Every sequence restarts at step 4, the state given and all.
        let what_reset = format!("{what} {name}, resets");
        let restart = |steps: usize| {
            let mask: Vec<bool> = (0..batch * steps).map(|i| i % steps == 4).collect();
            Tensor::<2, Bool>::from_data(TensorData::new(mask, [batch, steps]), &device)
        };
        // Positions go on through a reset.
        let at_zero = end.clone().at_position(0);
        let start = Sequence::new()
            .with_state(at_zero.clone())
            .with_reset(restart(steps));
        let (y, last) = layer.run(x.clone(), start);
        let (first, middle) = layer.forward(x.clone().narrow(1, 0, 4), Some(at_zero.clone()));
        let second = x.clone().narrow(1, 4, steps - 4);
        let (second, alone) = layer.forward(second, Some(middle.zeroed()));
        let expected = numbers(Tensor::cat(vec![first, second], 1));
        assert_close(&what_reset, &numbers(y), &expected, tolerance);
        same(&what_reset, &last, &alone, tolerance);

        // Sequences of 7 steps and of none, each with a reset, beside the same alone.
        let lengths = [7, 0];
        let what = format!("{what} {name}, lengths");
        let start = Sequence::new()
            .with_state(end.clone())
            .with_reset(restart(steps));
        let (y, last) = layer.run(x.clone(), start.with_lengths(&lengths));
        for (b, length) in lengths.into_iter().enumerate() {
            let row = |x: &Tensor<3>| x.clone().narrow(0, b, 1);
            let (start, last) = (end.row(b), last.row(b));
            let expected = match length {
                0 => start,
                _ => {
                    let reset = restart(steps).narrow(0, b, 1).narrow(1, 0, length);
                    let start = Sequence::new().with_state(start).with_reset(reset);
                    let (alone, expected) = layer.run(row(&x).narrow(1, 0, length), start);
                    let found = numbers(row(&y).narrow(1, 0, length));
                    assert_close(&what, &found, &numbers(alone), tolerance);
                    expected
                }
            };
            same(&what, &last, &expected, tolerance);
            let padded = numbers(row(&y).narrow(1, length, steps - length));
            assert!(padded.iter().all(|&y| y == 0.0), "{what}");
        }
    }
}

/// Nothing runs on nothing, and what does not fit is refused by its name.
fn refuses<S: Parts, L: Module + Recurrent<State = S>>(make: impl Fn(&Device) -> L) {
    let [batch, steps, features] = SIZES;
    for (name, device) in devices() {
        let layer = make(&device);
        let zeros = |shape: [usize; 3]| Tensor::<3>::zeros(shape, &device);
        let (y, good) = layer.forward(zeros(SIZES), None);
        let width = y.dims()[2];
        for [b, t] in [[0, 3], [2, 0], [0, 0]] {
            let (y, last) = layer.forward(zeros([b, t, features]), None);
            assert_eq!(y.dims(), [b, t, width], "{name}");
            for (found, good) in last.parts().iter().zip(good.parts()) {
                let (found, good) = (found.tensor.dims(), good.tensor.dims());
                assert_eq!(found[1..], good[1..], "{name}");
                assert_eq!(found[0], b, "{name}");
            }
        }
        let parts = good.parts().into_iter();
        let state = good.with(parts.map(|part| part.tensor + 1.0).collect());
        let (_, last) = layer.forward(zeros([batch, 0, features]), Some(state.clone()));
        same(&name, &last, &state, 0.0);

        let refused = |what: &str, x: Tensor<3>, sequence: Sequence<S>| {
            let error = layer.checked_run(x, sequence).map(drop).expect_err(what);
            assert!(error.to_string().contains(what), "{name}: {error}");
        };
        refused(
            "x: expected shape",
            zeros([2, 3, features + 1]),
            Sequence::new(),
        );
        refused("reset: expected shape", zeros(SIZES), {
            let mask = Tensor::<2>::zeros([batch, steps + 1], &device).greater_elem(0.0);
            Sequence::new().with_reset(mask)
        });
        refused(
            "lengths",
            zeros(SIZES),
            Sequence::new().with_lengths(&[steps]),
        );
        // Each part of the state with one more in its second dimension.
        for (i, part) in good.parts().into_iter().enumerate() {
            let mut parts: Vec<Tensor<4>> =
                good.parts().into_iter().map(|part| part.tensor).collect();
            let mut shape = part.tensor.dims();
            shape[1] += 1;
            parts[i] = Tensor::zeros(shape, &device);
            let state = Sequence::new().with_state(good.with(parts));
            refused(S::REFUSAL.unwrap_or(part.name), zeros(SIZES), state);
        }
        // All of the same length is no difference in lengths.
        let (equal, _) = layer.run(zeros(SIZES), Sequence::new().with_lengths(&[steps; 2]));
        assert_eq!(equal.dims(), [batch, steps, width], "{name}");
    }
}

/// `init` panics with the text of `check`, which names the field.
fn invalid(field: &str, check: Result<(), riverrun::Error>, init: impl FnOnce()) {
    let error = check.expect_err(field).to_string();
    assert!(error.contains(field), "{error}");
    let panic = catch_unwind(AssertUnwindSafe(init)).expect_err(field);
    assert_eq!(panic.downcast_ref::<String>(), Some(&error));
}
