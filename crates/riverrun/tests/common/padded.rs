//! Padded steps of a batch: what a layer computes does not depend on them.

use burn::module::Module;
use burn::tensor::{Device, Distribution, Gradients, Tensor, TensorData};
use riverrun::Sequence;
use riverrun::nn::Recurrent;

use crate::common::numbers;
use crate::parameters::parameters;

/// The lengths of the sequences of the batch.
pub const LENGTHS: [usize; 4] = [5, 2, 0, 1];
/// The steps of the batch.
pub const T: usize = 5;
/// The features of the input.
pub const D: usize = 3;

/// The gradients of a loss, and those of the parameters in order.
pub fn gradients(module: &impl Module, loss: Tensor<1>) -> (Gradients, Vec<Vec<f64>>) {
    let of = loss.backward();
    let found = parameters(module, Some(&of)).into_iter();
    let found = found.map(|(_, gradient)| gradient).collect();
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

/// Outputs, gradients of the input and gradients of the weights do not depend on the padded steps.
pub fn check<L: Module + Recurrent>(what: &str, layer: &L, device: &Device) {
    let x: Tensor<3> = Tensor::random(
        [LENGTHS.len(), T, D],
        Distribution::Uniform(-0.95, 0.95),
        device,
    );
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
