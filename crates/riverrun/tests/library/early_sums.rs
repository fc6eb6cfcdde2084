//! Which gradients a backward pass puts aside for early sums over ranks.

use std::sync::{Arc, Mutex};

use burn::nn::LinearConfig;
use burn::tensor::{DType, Device, Tensor};
use riverrun::Error;
use riverrun::nn::{MinGruConfig, Recurrent};
use riverrun::training::{EarlySums, early_sums};

use super::random;

/// The vectors that a backward pass would sum early. There is no device to do it.
fn asked(wide: bool, loss: Tensor<1>) -> Vec<(usize, DType)> {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = asked.clone();
    let sums = EarlySums::new(wide, move |vectors| {
        seen.lock().unwrap().extend_from_slice(vectors);
        Err(Error::Unsupported("no sums here".into()))
    });
    let end = early_sums(sums, || loss.backward());
    let asked = std::mem::take(&mut *asked.lock().unwrap());
    match asked.is_empty() {
        true => assert!(end.is_ok()),
        false => assert_eq!(end.err().unwrap().to_string(), "no sums here"),
    }
    asked
}

#[test]
fn large_weights_of_linear_layers_are_summed_early() {
    let device = Device::flex().autodiff();
    let layer = MinGruConfig::new(128, 256).init(&device);
    let x = random([2, 3, 128], &device);
    let (y, _) = layer.forward(x, None);
    assert_eq!(asked(false, y.sum()), [(128 * 512, DType::F32)]);
}

#[test]
fn small_and_computed_weights_are_not() {
    let device = Device::flex().autodiff();
    let x: Tensor<3> = random([2, 3, 64], &device);
    let small = LinearConfig::new(64, 64).init(&device);
    assert_eq!(asked(false, small.forward(x.clone()).sum()), []);
    let weight: Tensor<2> = random([64, 512], &device).require_grad();
    let twice = riverrun::ops::linear(x, weight * 2.0, None, Default::default()).unwrap();
    assert_eq!(asked(false, twice.sum()), []);
}
