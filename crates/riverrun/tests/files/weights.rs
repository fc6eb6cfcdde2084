//! Weights from PyTorch and back, and files that do not fit.

use burn::module::Param;
use burn::tensor::{Device, Tensor};
use riverrun::Error;
use riverrun::nn::{CellStack, GruConfig, LstmConfig, RnnConfig};
use riverrun::ops::ResetGate;
use riverrun::weights::{PyTorchLayer, checksum, from_pytorch, to_pytorch};

use crate::common::{assert_close, devices};
use crate::{all, golden};

fn cpu() -> Device {
    devices().into_iter().next().expect("a device").1
}

/// Reads PyTorch's file, writes it, reads it again: the same numbers, here and in PyTorch's safetensors file.
fn there_and_back<L: PyTorchLayer + Clone>(fresh: L, name: &str, stack: fn(&L) -> &CellStack) {
    let fits = |result: Result<L, Error>| result.unwrap_or_else(|error| panic!("{error}"));
    let first = fits(from_pytorch(
        fresh.clone(),
        golden(&format!("{name}.pt")),
        "",
    ));
    let path = golden(&format!("{name}.safetensors"));
    let second = fits(from_pytorch(fresh.clone(), path, ""));
    assert_close(name, &all(stack(&second)), &all(stack(&first)), 0.0);
    assert_ne!(all(stack(&first)), all(stack(&fresh)), "{name}");
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
    assert_close(name, &all(stack(&again)), &all(stack(&first)), 0.0);
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
    there_and_back(gru.init(&device), "gru-2-both", |layer| &layer.stack);
    let lstm = LstmConfig::new(4, 5)
        .with_layers(2)
        .with_bidirectional(true);
    there_and_back(lstm.init(&device), "lstm-2-both", |layer| &layer.stack);
    let rnn = RnnConfig::new(4, 5).with_layers(2).with_bidirectional(true);
    there_and_back(rnn.init(&device), "rnn-tanh-2-both", |layer| &layer.stack);
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

#[test]
fn the_names_of_a_single_cell_load() {
    let device = cpu();
    let lstm = LstmConfig::new(3, 4).init(&device);
    let path =
        std::env::temp_dir().join(format!("riverrun-cell-{}.safetensors", std::process::id()));
    to_pytorch(&lstm, &path, "cell.").expect("writing");
    // `nn.LSTMCell` has the same tensors under names without the layer's number; without a checksum, as another program
    // writes them.
    let bytes = std::fs::read(&path).expect("the file");
    let header = u64::from_le_bytes(bytes[..8].try_into().expect("eight")) as usize;
    let text = std::str::from_utf8(&bytes[8..8 + header]).expect("JSON");
    let mut json: serde_json::Value = serde_json::from_str(text).expect("JSON");
    let entries = json.as_object_mut().expect("an object");
    entries.remove("__metadata__");
    let renamed: serde_json::Map<_, _> = std::mem::take(entries)
        .into_iter()
        .map(|(name, entry)| (name.trim_end_matches("_l0").to_string(), entry))
        .collect();
    let text = serde_json::Value::Object(renamed).to_string();
    let mut file = (text.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(text.as_bytes());
    file.extend_from_slice(&bytes[8 + header..]);
    std::fs::write(&path, file).expect("writing");
    let again = from_pytorch(LstmConfig::new(3, 4).init(&device), &path, "cell.");
    let again = again.unwrap_or_else(|error| panic!("{error}"));
    assert_close("a cell", &all(&again.stack), &all(&lstm.stack), 0.0);
    let deep = LstmConfig::new(3, 4).with_layers(2).init(&device);
    let error = from_pytorch(deep, &path, "cell.")
        .map(|_| ())
        .expect_err("one layer");
    assert!(matches!(error, Error::SurplusTensor { .. }), "{error}");
    std::fs::remove_file(path).expect("removing the file");
}

#[test]
fn a_checksum_follows_every_number() {
    let device = cpu();
    let mut gru = GruConfig::new(3, 4).init(&device);
    let before = checksum(&gru);
    assert_eq!(before, checksum(&gru.clone()));
    let bias = &mut gru.stack.layers[0].bias_hh;
    let tensor = bias.as_ref().expect("a bias").val();
    let [length] = tensor.dims();
    let mut change = vec![0.0f32; length];
    change[length - 1] = 1e-3;
    let change = Tensor::<1>::from_floats(change.as_slice(), &device);
    *bias = Some(Param::from_tensor(tensor + change));
    assert_ne!(before, checksum(&gru));
}
