//! Which gradients a backward pass puts aside for early sums over ranks.

use std::sync::{Arc, Mutex};

use burn::nn::LinearConfig;
use burn::tensor::{DType, Device, Int, Tensor};
use riverrun::Error;
use riverrun::nn::{MinGruConfig, Recurrent};
use riverrun::ops::embedding;
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

/// The vectors of which a backward pass would gather those of all of `ranks`.
fn gathered(ranks: usize, loss: Tensor<1>) -> Vec<(usize, DType)> {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = asked.clone();
    let none = |_: &[(usize, DType)]| Err(Error::Unsupported("no sums here".into()));
    let sums = EarlySums::new(false, none).with_gather(ranks, move |vectors| {
        seen.lock().unwrap().extend_from_slice(vectors);
        none(vectors)
    });
    drop(early_sums(sums, || loss.backward()));
    std::mem::take(&mut *asked.lock().unwrap())
}

#[test]
fn rows_of_large_tables_are_gathered_where_they_are_fewer_than_the_tables() {
    let device = Device::flex().autodiff();
    let tokens = Tensor::<2, Int>::from_data([[3, 1, 4], [1, 5, 9]], &device);
    let loss = |vocab: usize, scale: Option<f64>| {
        let table: Tensor<2> = random([vocab, 4096], &device).require_grad();
        let table = match scale {
            Some(scale) => table * scale,
            None => table,
        };
        embedding(table, tokens.clone()).unwrap().sum()
    };
    let rows = [(6 * 4096, DType::F32), (6, DType::F32)];
    assert_eq!(gathered(2, loss(512, None)), rows);
    // As many rows as the table has, and one more.
    assert_eq!(gathered(85, loss(510, None)), rows);
    assert_eq!(gathered(86, loss(510, None)), []);
    // A small table, and one that was computed.
    assert_eq!(gathered(2, loss(64, None)), []);
    assert_eq!(gathered(2, loss(512, Some(2.0))), []);
}
