//! What layers make of the padded steps of a batch: nothing, not even of a NaN there.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Int, Tensor, TensorData};
use riverrun::Sequence;
use riverrun::models::{BlockConfig, LanguageModelConfig, RecurrentKind};
use riverrun::nn::{
    BlockDiagonalRnnConfig, GatedRnnConfig, GruConfig, LinearRnnConfig, LstmConfig, MinGruConfig,
    MinLstmConfig, Recurrent, RgLruConfig, RnnConfig,
};
use riverrun::ops::Gate;

use super::random;
use crate::common::{devices, numbers};

const LENGTHS: [usize; 4] = [5, 2, 0, 1];
const T: usize = 5;
const D: usize = 3;

/// The gradient of every parameter.
struct Collect<'a> {
    of: &'a Gradients,
    found: Vec<Vec<f64>>,
}

impl ModuleVisitor for Collect<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let gradient = param.val().grad(self.of).expect("a gradient");
        self.found.push(numbers(gradient));
    }
}

fn gradients(module: &impl Module, loss: Tensor<1>) -> (Gradients, Vec<Vec<f64>>) {
    let of = loss.backward();
    let found = Vec::new();
    let mut gradients = Collect { of: &of, found };
    module.visit(&mut gradients);
    let found = gradients.found;
    (of, found)
}

/// `[B, T, D]` with a number at the padded steps.
fn padded(x: &[f32], with: f32, device: &Device) -> Tensor<3> {
    let value = |i: usize| match (i / D) % T < LENGTHS[i / (T * D)] {
        true => x[i],
        false => with,
    };
    let data: Vec<f32> = (0..x.len()).map(value).collect();
    Tensor::from_data(TensorData::new(data, [LENGTHS.len(), T, D]), device).require_grad()
}

fn check<L: Module + Recurrent>(what: &str, layer: &L, device: &Device) {
    let x: Tensor<3> = random([LENGTHS.len(), T, D], device);
    let x: Vec<f32> = x.into_data().iter().collect();
    let run = |with: f32| {
        let x = padded(&x, with, device);
        let (y, _) = layer.run(x.clone(), Sequence::new().with_lengths(&LENGTHS));
        let (of, weights) = gradients(layer, y.clone().powi_scalar(2).sum());
        let d_x = numbers(x.grad(&of).expect("a gradient"));
        (numbers(y), d_x, weights)
    };
    let expected = run(0.0);
    for with in [f32::NAN, f32::INFINITY] {
        let (y, d_x, weights) = run(with);
        let features = y.len() / (LENGTHS.len() * T);
        for (b, length) in LENGTHS.into_iter().enumerate() {
            let past = |x: &[f64], width: usize| {
                let row = &x[b * T * width..][..T * width][length * width..];
                row.iter().all(|&x| x == 0.0)
            };
            assert!(past(&y, features), "{what}: outputs of sequence {b}");
            assert!(past(&d_x, D), "{what}: d_x of sequence {b}");
        }
        assert!(weights.iter().flatten().all(|d| d.is_finite()), "{what}");
        assert_eq!((y, d_x, weights), expected, "{what}");
    }
}

#[test]
fn layers_do_not_read_it() {
    for (name, device) in devices() {
        let device = &device.autodiff();
        let what = |layer: &str| format!("{name} {layer}");
        for reverse in [false, true] {
            let layer = MinGruConfig::new(D, 4).with_reverse(reverse).init(device);
            check(&what("min-gru"), &layer, device);
            let layer = MinLstmConfig::new(D, 4).with_reverse(reverse).init(device);
            check(&what("min-lstm"), &layer, device);
            let layer = LinearRnnConfig::new(D, 4)
                .with_reverse(reverse)
                .init(device);
            check(&what("linear"), &layer, device);
            let layer = RgLruConfig::new(D, 4).with_reverse(reverse).init(device);
            check(&what("rg-lru"), &layer, device);
            let layer = RgLruConfig::new(D, D)
                .with_blocks(3)
                .with_reverse(reverse)
                .init(device);
            check(&what("rg-lru in blocks"), &layer, device);
            let layer = BlockDiagonalRnnConfig::new(D, 4)
                .with_block(2)
                .with_reverse(reverse)
                .init(device);
            check(&what("block-diagonal"), &layer, device);
        }
        let layer = RgLruConfig::new(D, D).with_scale_first(false).init(device);
        check(&what("rg-lru without the first factor"), &layer, device);
        let layer = GatedRnnConfig::new(D, 4, Gate::Sigmoid).init(device);
        check(&what("gated"), &layer, device);
        let layer = GruConfig::new(D, 4)
            .with_bidirectional(true)
            .with_layers(2)
            .init(device);
        check(&what("gru"), &layer, device);
        let layer = LstmConfig::new(D, 4).with_heads(2).init(device);
        check(&what("lstm"), &layer, device);
        let layer = RnnConfig::new(D, 4).init(device);
        check(&what("rnn"), &layer, device);
        for cell in [RecurrentKind::MinGru, RecurrentKind::Gru] {
            let layer = BlockConfig::new(D, cell).with_expansion(2).init(device);
            check(&what("block"), &layer, device);
        }
    }
}

#[test]
fn a_language_model_takes_any_token_for_it() {
    for (name, device) in devices() {
        let device = &device.autodiff();
        let model = LanguageModelConfig::new(7, 8, 2).init(device);
        let run = |with: i32| {
            let token = |i: usize| match i % T < LENGTHS[i / T] {
                true => (i % 7) as i32,
                false => with,
            };
            let tokens: Vec<i32> = (0..LENGTHS.len() * T).map(token).collect();
            let tokens = TensorData::new(tokens, [LENGTHS.len(), T]);
            let tokens = Tensor::<2, Int>::from_data(tokens, device);
            let (logits, _) = model.forward(tokens, Sequence::new().with_lengths(&LENGTHS));
            gradients(&model, logits.narrow(0, 1, 1).narrow(1, 0, 2).sum()).1
        };
        assert_eq!(run(-1), run(0), "{name}");
    }
}
