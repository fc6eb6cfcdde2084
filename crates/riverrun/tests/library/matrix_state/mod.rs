//! Layers on matrix states: against their formulas in f64, one step after the other; in chunks, with resets, and what they refuse.

mod composed;
mod gated_delta_net;
mod mamba2;

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Bool, DType, Device, Tensor, TensorData};
use riverrun::Sequence;
use riverrun::nn::{MatrixLayerState, Recurrent};

use crate::common::{assert_close, devices, numbers};
use crate::normal;
use crate::parameters::parameters;

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
struct Inputs {
    x: Tensor<3>,
    state: MatrixLayerState,
    d_y: Tensor<3>,
    d_state: MatrixLayerState,
    /// `[B, T]`.
    reset: Vec<bool>,
}

impl Inputs {
    fn new<L: Recurrent<State = MatrixLayerState>>(layer: &L, device: &Device) -> Self {
        let [batch, steps, features] = SIZES;
        let x = wave([batch, steps, features], 100, device);
        let (y, state) = layer.forward(x.clone(), None);
        let like = |stream: usize| {
            let inputs = wave(state.inputs.dims(), stream, device);
            MatrixLayerState::new(inputs, wave(state.matrix.dims(), stream + 1, device))
        };
        Self {
            x,
            d_y: wave(y.dims(), 101, device),
            d_state: like(102),
            state: like(104),
            reset: (0..batch * steps).map(|i| i % 9 == 5).collect(),
        }
    }

    fn reset(&self, device: &Device) -> Tensor<2, Bool> {
        let [batch, steps, _] = SIZES;
        Tensor::from_data(TensorData::new(self.reset.clone(), [batch, steps]), device)
    }
}

/// Outputs, last state and all gradients, by name.
fn results<L: Module>(
    layer: &L,
    inputs: &Inputs,
    (device, dtype): (&Device, DType),
    run: impl Fn(&L, Tensor<3>, Sequence<MatrixLayerState>) -> (Tensor<3>, MatrixLayerState),
) -> Vec<(String, Vec<f64>)> {
    let matrix = if dtype == DType::F64 {
        dtype
    } else {
        DType::F32
    };
    let leaf = |x: &Tensor<3>| moved(x.clone(), device, dtype).require_grad();
    let (x, start) = (leaf(&inputs.x), leaf(&inputs.state.inputs));
    let state = moved(inputs.state.matrix.clone(), device, matrix).require_grad();
    let sequence = Sequence::new()
        .with_state(MatrixLayerState::new(start.clone(), state.clone()))
        .with_reset(inputs.reset(device));
    let (y, last) = run(layer, x.clone(), sequence);
    let d_y = moved(inputs.d_y.clone(), device, dtype);
    let d_inputs = moved(inputs.d_state.inputs.clone(), device, dtype);
    let d_matrix = moved(inputs.d_state.matrix.clone(), device, matrix);
    let loss = (y.clone() * d_y).sum().cast(matrix)
        + (last.inputs.clone() * d_inputs).sum().cast(matrix)
        + (last.matrix.clone() * d_matrix).sum();
    let of = loss.backward();
    let gradient = |x: &Tensor<3>| numbers(x.grad(&of).expect("a gradient"));
    let mut found = vec![
        ("y".into(), numbers(y)),
        ("last inputs".into(), numbers(last.inputs)),
        ("last matrix".into(), numbers(last.matrix)),
        ("d_x".into(), gradient(&x)),
        ("d_inputs".into(), gradient(&start)),
        (
            "d_matrix".into(),
            numbers(state.grad(&of).expect("a gradient")),
        ),
    ];
    found.extend(parameters(layer, Some(&of)));
    found
}

/// The layer is its formulas: in f64 and in bf16 on the CPU, and in f32 on every device.
fn agrees<L: Module + Recurrent<State = MatrixLayerState>>(
    what: &str,
    make: impl Fn(&Device) -> L,
    formulas: impl Fn(&L, Tensor<3>, Sequence<MatrixLayerState>) -> (Tensor<3>, MatrixLayerState),
) {
    let Some((_, cpu)) = devices().into_iter().find(|(name, _)| name == "cpu") else {
        return;
    };
    let layer = make(&cpu).map(&mut Waves(0));
    let inputs = Inputs::new(&layer, &cpu);
    let oracle = (&cpu.clone().autodiff(), DType::F64);
    let exact = layer.clone().map(&mut Moved(oracle.0, oracle.1));
    let expected = results(&exact, &inputs, oracle, formulas);
    let check = |what: &str, found: Vec<(String, Vec<f64>)>, tolerance: f64| {
        assert_eq!(found.len(), expected.len());
        for ((name, found), (_, expected)) in found.iter().zip(&expected) {
            assert_close(&format!("{what}: {name}"), found, expected, tolerance);
        }
    };
    let run = |layer: &L, x, sequence| layer.run(x, sequence);
    check(
        &format!("{what} f64"),
        results(&exact, &inputs, oracle, run),
        DOUBLE,
    );
    let place = (oracle.0, DType::BF16);
    let rough = layer.clone().map(&mut Moved(place.0, place.1));
    let found = results(&rough, &inputs, place, run);
    for ((name, found), (_, expected)) in found.iter().zip(&expected).take(3) {
        let what = format!("{what} bf16: {name}");
        assert_close(&what, found, expected, HALF);
    }
    let finite = |(_, x): &(String, Vec<f64>)| x.iter().all(|x| x.is_finite());
    assert!(found.iter().all(finite), "{what} bf16: gradients");
    for (name, device) in devices() {
        let place = (&device.autodiff(), DType::F32);
        let layer = layer.clone().map(&mut Moved(place.0, place.1));
        check(
            &format!("{what} {name}"),
            results(&layer, &inputs, place, run),
            SINGLE,
        );
    }
}

/// A sequence, its chunks and its steps are the same, bit for bit on the CPU; a reset starts a sequence of its own.
fn runs_in_pieces<L: Module + Recurrent<State = MatrixLayerState>>(
    what: &str,
    make: impl Fn(&Device) -> L,
) {
    let [_, steps, _] = SIZES;
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
            assert_close(
                &what,
                &numbers(state.inputs),
                &numbers(end.inputs.clone()),
                tolerance,
            );
            assert_close(
                &what,
                &numbers(state.matrix),
                &numbers(end.matrix.clone()),
                tolerance,
            );
        }
        // Every sequence restarts at step 4, the state given and all.
        let what = format!("{what} {name}, resets");
        let mask: Vec<bool> = (0..SIZES[0] * steps).map(|i| i % steps == 4).collect();
        let mask = Tensor::from_data(TensorData::new(mask, [SIZES[0], steps]), &device);
        let start = Sequence::new().with_state(end.clone()).with_reset(mask);
        let (y, last) = layer.run(x.clone(), start);
        let (first, _) = layer.forward(x.clone().narrow(1, 0, 4), Some(end));
        let (second, alone) = layer.forward(x.narrow(1, 4, steps - 4), None);
        let expected = numbers(Tensor::cat(vec![first, second], 1));
        assert_close(&what, &numbers(y), &expected, tolerance);
        assert_close(
            &what,
            &numbers(last.inputs),
            &numbers(alone.inputs),
            tolerance,
        );
        assert_close(
            &what,
            &numbers(last.matrix),
            &numbers(alone.matrix),
            tolerance,
        );
    }
}

/// Nothing runs on nothing, and what does not fit is refused by its name.
fn refuses<L: Module + Recurrent<State = MatrixLayerState>>(
    layer_name: &str,
    make: impl Fn(&Device) -> L,
) {
    let [batch, steps, features] = SIZES;
    for (name, device) in devices() {
        let layer = make(&device);
        let zeros = |shape: [usize; 3]| Tensor::<3>::zeros(shape, &device);
        let (_, good) = layer.forward(zeros(SIZES), None);
        for [b, t] in [[0, 3], [2, 0], [0, 0]] {
            let (y, last) = layer.forward(zeros([b, t, features]), None);
            assert_eq!(y.dims(), [b, t, features], "{name}");
            assert_eq!(last.matrix.dims()[1..], good.matrix.dims()[1..], "{name}");
            assert_eq!(
                [last.inputs.dims()[0], last.matrix.dims()[0]],
                [b; 2],
                "{name}"
            );
        }
        let state = MatrixLayerState::new(good.inputs.clone() + 1.0, good.matrix.clone() + 1.0);
        let (_, last) = layer.forward(zeros([batch, 0, features]), Some(state.clone()));
        assert_eq!(numbers(last.inputs), numbers(state.inputs), "{name}");
        assert_eq!(numbers(last.matrix), numbers(state.matrix), "{name}");

        let refused = |what: &str, x: Tensor<3>, sequence: Sequence<MatrixLayerState>| {
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
            layer_name,
            zeros(SIZES),
            Sequence::new().with_lengths(&[steps, 2]),
        );
        let with = |inputs: Tensor<3>, matrix: Tensor<4>| {
            Sequence::new().with_state(MatrixLayerState::new(inputs, matrix))
        };
        let fewer = good.inputs.clone().narrow(1, 0, 1);
        refused(
            "the inputs of the state",
            zeros(SIZES),
            with(fewer, good.matrix.clone()),
        );
        let fewer = good.matrix.clone().narrow(1, 0, 1);
        refused(
            "the matrix of the state",
            zeros(SIZES),
            with(good.inputs.clone(), fewer),
        );
        // All of the same length is no difference in lengths.
        let (equal, _) = layer.run(zeros(SIZES), Sequence::new().with_lengths(&[steps; 2]));
        assert_eq!(equal.dims(), SIZES, "{name}");
    }
}

/// `init` panics with the text of `check`, which names the field.
fn invalid(field: &str, check: Result<(), riverrun::Error>, init: impl FnOnce()) {
    let error = check.expect_err(field).to_string();
    assert!(error.contains(field), "{error}");
    let panic = catch_unwind(AssertUnwindSafe(init)).expect_err(field);
    assert_eq!(panic.downcast_ref::<String>(), Some(&error));
}
