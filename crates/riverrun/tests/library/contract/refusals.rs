//! What cannot be done is an error, before anything is launched.

use burn::tensor::{Bool, FloatDType, Tensor};
use riverrun::ops::{
    Cell, CellOptions, CellWeights, ScanOptions, add_rms_norm, block_diagonal_scan, cell_layer,
    cross_entropy, gelu, layer_norm, linear_scan, min_gru, min_lstm, swiglu,
};
use riverrun::ops::{LinearSpec, linear, mlp};
use riverrun::{Error, Sequence};

use crate::common::devices;

#[test]
fn f64_is_for_the_cpu() {
    for (name, device) in devices() {
        let cast = |shape| Tensor::<3>::zeros(shape, &device);
        if name != "cpu" {
            // A GPU without the type cannot even hold such a tensor.
            if !device.supports_dtype(FloatDType::F64) {
                println!("skipped: {name} holds no f64");
                continue;
            }
        }
        let x = cast([2, 3, 6]).cast(FloatDType::F64);
        let flat = || x.clone().reshape([6, 6]);
        let row = || flat().narrow(0, 0, 1).reshape([6]);
        let sequence = Sequence::new;
        let options = ScanOptions::new();
        let weights = CellWeights::new(flat(), flat());
        let elman = Cell::Elman {
            activation: Default::default(),
        };
        let a = Tensor::<5>::zeros([2, 3, 2, 3, 3], &device).cast(FloatDType::F64);
        let targets = Tensor::zeros([6], &device);
        let results = [
            linear_scan(x.clone(), x.clone(), sequence(), options).map(drop),
            min_gru(x.clone(), Default::default(), sequence(), options).map(drop),
            min_lstm(x.clone(), Default::default(), true, sequence(), options).map(drop),
            block_diagonal_scan(a, x.clone(), sequence(), options).map(drop),
            cell_layer(
                x.clone(),
                weights,
                elman,
                Sequence::new(),
                CellOptions::new(),
            )
            .map(drop),
            linear(x.clone(), flat(), None, LinearSpec::default()).map(drop),
            mlp(
                x.clone(),
                (flat(), None),
                (flat(), None),
                LinearSpec::default(),
            )
            .map(drop),
            layer_norm(x.clone(), row(), None, 1e-5).map(drop),
            add_rms_norm(x.clone(), x.clone(), row(), 1e-5).map(drop),
            cross_entropy(flat(), targets).map(drop),
            gelu(x.clone()).map(drop),
            swiglu(x.clone(), x.clone()).map(drop),
        ];
        for (i, result) in results.into_iter().enumerate() {
            match name.as_str() {
                "cpu" => assert!(result.is_ok(), "operation {i}: {result:?}"),
                _ => assert!(
                    matches!(result, Err(Error::Dtype { .. })),
                    "{name} operation {i}: {result:?}"
                ),
            }
        }
    }
}

#[test]
fn resets_live_with_the_inputs() {
    let devices = devices();
    let [(_, one), (_, other)] = devices.as_slice() else {
        println!("skipped: one device only");
        return;
    };
    let x = Tensor::<3>::zeros([2, 3, 4], one);
    let far = Tensor::<2>::zeros([2, 3], other).greater_elem(0.0);
    let far: Tensor<2, Bool> = far;
    let sequence = Sequence::new().with_reset(far.clone());
    let refused = linear_scan(x.clone(), x.clone(), sequence, ScanOptions::new());
    assert!(matches!(refused, Err(Error::Device { what: "reset", .. })));
    let weights = CellWeights::new(Tensor::zeros([12, 4], one), Tensor::zeros([12, 4], one));
    let cell = Cell::Gru {
        reset: Default::default(),
    };
    let sequence = Sequence::new().with_reset(far);
    let refused = cell_layer(x, weights, cell, sequence, CellOptions::new());
    assert!(matches!(refused, Err(Error::Device { what: "reset", .. })));
}

#[test]
fn lengths_fit_the_batch() {
    for (_, device) in devices() {
        let x = Tensor::<3>::zeros([2, 3, 4], &device);
        let run = |lengths: &[usize]| {
            let sequence = Sequence::new().with_lengths(lengths);
            linear_scan(x.clone(), x.clone(), sequence, ScanOptions::new())
        };
        assert!(run(&[3, 0]).is_ok());
        let few = run(&[3]);
        assert!(matches!(
            few,
            Err(Error::Shape {
                what: "lengths",
                ..
            })
        ));
        let long = run(&[3, 4]);
        assert!(matches!(long, Err(Error::SequenceLength { index: 1, .. })));
    }
}
