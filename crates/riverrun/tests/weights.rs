//! Weights from PyTorch and back, and files that do not fit.

mod common;

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use common::{assert_close, devices, numbers};
use riverrun::Error;
use riverrun::nn::{CellStack, GruConfig, LstmConfig, RnnConfig};
use riverrun::ops::ResetGate;
use riverrun::weights::{PyTorchLayer, from_pytorch, to_pytorch};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden/cells")
        .join(name)
}

fn all(stack: &CellStack) -> Vec<f64> {
    let mut found = Vec::new();
    for layer in &stack.layers {
        let weights = layer.weights();
        found.extend(numbers(weights.weight_ih));
        found.extend(numbers(weights.weight_hh));
        for bias in [weights.bias_ih, weights.bias_hh].into_iter().flatten() {
            found.extend(numbers(bias));
        }
    }
    found
}

fn cpu() -> Device {
    devices().into_iter().next().expect("a device").1
}

/// Reads PyTorch's file, writes it, reads it again: the same numbers, here and in PyTorch's safetensors file.
fn there_and_back<L: PyTorchLayer + Clone>(fresh: L, name: &str) {
    let fits = |result: Result<L, Error>| result.unwrap_or_else(|error| panic!("{error}"));
    let first = fits(from_pytorch(
        fresh.clone(),
        golden(&format!("{name}.pt")),
        "",
    ));
    let path = golden(&format!("{name}.safetensors"));
    let second = fits(from_pytorch(fresh.clone(), path, ""));
    assert_close(name, &all(second.stack()), &all(first.stack()), 0.0);
    assert_ne!(all(first.stack()), all(fresh.stack()), "{name}");
    let file = format!("riverrun-weights-{name}-{}.safetensors", std::process::id());
    let path = std::env::temp_dir().join(file);
    to_pytorch(&first, &path, "model.rnn.").unwrap_or_else(|error| panic!("{error}"));
    let text = String::from_utf8_lossy(&std::fs::read(&path).expect("the file")).into_owned();
    for tensor in ["weight_ih_l0", "bias_hh_l1", "weight_hh_l1_reverse"] {
        assert!(
            text.contains(&format!("\"model.rnn.{tensor}\"")),
            "{name}: {tensor}"
        );
    }
    let again = fits(from_pytorch(fresh.clone(), &path, "model.rnn."));
    assert_close(name, &all(again.stack()), &all(first.stack()), 0.0);
    let missing = from_pytorch(fresh, &path, "model.lstm.").map(|_| ());
    let expected = Error::MissingTensor {
        file: path.display().to_string(),
        name: "model.lstm.weight_ih_l0".into(),
    };
    assert_eq!(missing, Err(expected));
    std::fs::remove_file(path).expect("removing the file");
}

#[test]
fn files_go_there_and_back() {
    let device = cpu();
    let gru = GruConfig::new(4, 5).with_layers(2).with_bidirectional(true);
    there_and_back(gru.init(&device), "gru-2-both");
    let lstm = LstmConfig::new(4, 5)
        .with_layers(2)
        .with_bidirectional(true);
    there_and_back(lstm.init(&device), "lstm-2-both");
    let rnn = RnnConfig::new(4, 5).with_layers(2).with_bidirectional(true);
    there_and_back(rnn.init(&device), "rnn-tanh-2-both");
}

#[test]
fn a_file_that_does_not_fit_is_refused_by_name() {
    let device = cpu();
    let refused = |config: GruConfig, name: &str| {
        let error = from_pytorch(config.init(&device), golden(name), "");
        error.map(|_| ()).expect_err("does not fit").to_string()
    };
    let both = || GruConfig::new(4, 5).with_layers(2).with_bidirectional(true);
    for name in ["gru-2-both.pt", "gru-2-both.safetensors"] {
        let error = refused(both().with_bias(false), name);
        assert!(error.contains("no tensor `bias_hh_l0`"), "{error}");
        let error = refused(both().with_bidirectional(false), name);
        assert!(error.contains("_reverse`"), "{error}");
        let error = refused(both().with_layers(3), name);
        assert!(
            error.contains("there is no tensor `weight_ih_l2`"),
            "{error}"
        );
    }
    let error = refused(GruConfig::new(4, 6), "gru-1.pt");
    for part in ["weight_ih_l0", "[18, 4]", "[15, 4]"] {
        assert!(error.contains(part), "{error}");
    }
    let error = refused(GruConfig::new(4, 5), "lstm-1.pt");
    assert!(
        error.contains("[15, 4]") && error.contains("[20, 4]"),
        "{error}"
    );
    let error = refused(GruConfig::new(4, 5), "nowhere.pt");
    assert!(error.contains("nowhere.pt"), "{error}");
    let error = refused(GruConfig::new(4, 5), "nowhere.safetensors");
    assert!(error.contains("nowhere.safetensors"), "{error}");
    let error = refused(
        GruConfig::new(4, 5).with_reset_gate(ResetGate::Before),
        "gru-1.pt",
    );
    assert!(error.contains("before the product"), "{error}");
    let file = std::env::temp_dir().join(format!("riverrun-noise-{}.pt", std::process::id()));
    std::fs::write(&file, b"no weights at all").expect("writing");
    let noise = from_pytorch(GruConfig::new(4, 5).init(&device), &file, "").map(|_| ());
    assert!(matches!(noise, Err(Error::File { .. })), "{noise:?}");
    let written = to_pytorch(&GruConfig::new(4, 5).init(&device), &file, "");
    assert!(matches!(written, Err(Error::File { .. })), "{written:?}");
    std::fs::remove_file(file).expect("removing the file");
}
