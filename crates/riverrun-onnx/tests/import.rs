//! Layers there and back, ONNX's own test data, and what is refused.

use std::fs;
use std::path::Path;

use burn::tensor::{Device, Distribution, Tensor, TensorData};
use riverrun::Sequence;
use riverrun::nn::{CellStack, GruConfig, LstmConfig, MinGruConfig, Recurrent, RnnConfig};
use riverrun::ops::{Activation, ResetGate};
use riverrun_models::{LanguageModelConfig, RecurrentKind};
use riverrun_onnx::{Onnx, ToOnnx, tensor};

fn weights(stack: &CellStack) -> Vec<Vec<f32>> {
    let numbers = |data: TensorData| data.iter::<f32>().collect::<Vec<f32>>();
    let layers = stack.layers.iter();
    layers
        .flat_map(|layer| {
            let matrices =
                [&layer.weight_ih, &layer.weight_hh].map(|w| numbers(w.val().into_data()));
            let biases = [&layer.bias_ih, &layer.bias_hh].into_iter().flatten();
            let biases = biases.map(|b| numbers(b.val().into_data()));
            matrices.into_iter().chain(biases).collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn weights_there_and_back_are_the_same() {
    let device = Device::flex();
    for (layers, bidirectional) in [(1, false), (3, false), (2, true)] {
        for reset in [ResetGate::After, ResetGate::Before] {
            let gru = GruConfig::new(5, 6)
                .with_layers(layers)
                .with_bidirectional(bidirectional)
                .with_reset_gate(reset)
                .init(&device);
            let bytes = gru.to_onnx().unwrap().to_bytes();
            let again = Onnx::from_bytes(&bytes).unwrap().gru(&device).unwrap();
            assert_eq!(weights(&again.stack), weights(&gru.stack));
            assert_eq!(again.stack.layers[0].cell, gru.stack.layers[0].cell);
            assert_eq!(again.stack.bidirectional, bidirectional);
        }
        let lstm = LstmConfig::new(5, 6)
            .with_layers(layers)
            .with_bidirectional(bidirectional)
            .init(&device);
        let again = lstm.to_onnx().unwrap().lstm(&device).unwrap();
        assert_eq!(weights(&again.stack), weights(&lstm.stack));
        for activation in [Activation::Tanh, Activation::Relu] {
            let rnn = RnnConfig::new(5, 6)
                .with_layers(layers)
                .with_bidirectional(bidirectional)
                .with_activation(activation)
                .init(&device);
            let again = rnn.to_onnx().unwrap().rnn(&device).unwrap();
            assert_eq!(weights(&again.stack), weights(&rnn.stack));
            assert_eq!(again.stack.layers[0].cell, rnn.stack.layers[0].cell);
        }
    }
}

#[test]
fn what_has_no_form_is_refused_by_name() {
    let device = Device::flex();
    let refused = |result: Result<(), riverrun::Error>, message: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    };
    let scan = MinGruConfig::new(3, 4).init(&device).to_onnx().unwrap();
    refused(scan.gru(&device).map(|_| ()), "no node GRU");
    let model = |cell: &str, every: Option<usize>| {
        LanguageModelConfig::new(7, 8, 2)
            .with_cell(cell.parse::<RecurrentKind>().unwrap())
            .with_attention_every(every)
            .init(&device)
            .to_onnx()
            .map(|_| ())
    };
    refused(model("gated-delta-net", None), "heads has no ONNX form");
    refused(model("min-gru", Some(2)), "--attention-every");
    refused(
        Onnx::from_bytes(b"\xff\xff").map(|_| ()),
        "not an ONNX model",
    );
    refused(Onnx::from_bytes(b"").map(|_| ()), "there is no graph");
    let missing = Onnx::read("no such file.onnx").map(|_| ());
    refused(missing, "no such file.onnx");
}

/// A case of ONNX's test data: the model with its weights as inputs, those inputs, and the outputs.
fn case(folder: &Path) -> (Onnx, Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let files = |kind: &str| {
        let path = |index: usize| folder.join(format!("test_data_set_0/{kind}_{index}.pb"));
        let paths = (0..).map(path).take_while(|path| path.is_file());
        paths.map(|path| fs::read(path).unwrap()).collect()
    };
    let model = Onnx::read(folder.join("model.onnx")).unwrap();
    (model, files("input"), files("output"))
}

/// The node tests of ONNX, `onnx/backend/test/data/node`, from the folder in `ONNX_TEST_DATA`.
#[test]
fn the_standards_own_test_data() {
    let Some(folder) = std::env::var_os("ONNX_TEST_DATA") else {
        println!("skipped: ONNX_TEST_DATA names no folder");
        return;
    };
    let device = Device::flex();
    let mut held = 0;
    // Cases in the layout of batches first, and those with lengths, have other inputs; reverse and peepholes are refused.
    for name in [
        "gru_defaults",
        "gru_with_initial_bias",
        "gru_seq_length",
        "lstm_defaults",
        "lstm_with_initial_bias",
        "rnn_seq_length",
        "simple_rnn_defaults",
        "simple_rnn_with_initial_bias",
    ] {
        let (mut model, inputs, outputs) = case(&Path::new(&folder).join(format!("test_{name}")));
        for (index, input) in inputs.iter().enumerate().skip(1) {
            model.set_input(index, input).unwrap();
        }
        let (sizes, numbers) = tensor(&inputs[0]).unwrap();
        // [T, B, I] there.
        let x = TensorData::new(numbers, [sizes[0], sizes[1], sizes[2]]);
        let x = Tensor::<3>::from_data(x, &device).swap_dims(0, 1);
        let (y, last) = match name {
            _ if name.starts_with("gru") => model.gru(&device).unwrap().run(x, Sequence::new()),
            _ if name.starts_with("lstm") => {
                let (y, last) = model.lstm(&device).unwrap().run(x, Sequence::new());
                (y, last.h)
            }
            _ => model.rnn(&device).unwrap().run(x, Sequence::new()),
        };
        for output in &outputs {
            let (sizes, expected) = tensor(output).unwrap();
            let found = match sizes.len() {
                // [T, 1, B, H].
                4 => y.clone().swap_dims(0, 1).into_data(),
                _ => last.clone().into_data(),
            };
            let found: Vec<f32> = found.iter::<f32>().collect();
            assert_eq!(found.len(), expected.len(), "{name}");
            for (found, expected) in found.iter().zip(&expected) {
                assert!(
                    (found - expected).abs() < 1e-5,
                    "{name}: {found}, not {expected}"
                );
                held += 1;
            }
        }
    }
    assert!(held > 100, "{held} numbers");
    let (mut peepholes, inputs, _) = case(&Path::new(&folder).join("test_lstm_with_peepholes"));
    for (index, input) in inputs.iter().enumerate().skip(1) {
        // Lengths are integers, which no layer reads.
        let _ = peepholes.set_input(index, input);
    }
    let error = peepholes.lstm(&device).unwrap_err().to_string();
    assert!(error.contains("peepholes"), "{error}");
}

#[test]
fn a_model_of_one_batch_runs_on_another() {
    // Sizes of batches and sequences are names in the file, not numbers.
    let device = Device::flex();
    let gru = GruConfig::new(3, 4).init(&device);
    let text = String::from_utf8_lossy(&gru.to_onnx().unwrap().to_bytes()).into_owned();
    assert!(text.contains("batch") && text.contains("time"));
    let x = Tensor::<3>::random([2, 3, 3], Distribution::Default, &device);
    let again = gru.to_onnx().unwrap().gru(&device).unwrap();
    let (expected, _) = gru.run(x.clone(), Sequence::new());
    let (found, _) = again.run(x, Sequence::new());
    assert_eq!(found.into_data(), expected.into_data());
}
