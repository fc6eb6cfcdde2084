//! Published models against transformers, and RWKV-7 against its equations: files of weights, results, steps, gradients.

use std::fs;
use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::tensor::{DType, FloatDType, Int, Tensor, TensorData};
use riverrun::Sequence;
use riverrun::ops::cross_entropy;
use riverrun_models::weights::Published;
use riverrun_models::{AnyLanguageModel, AnyLanguageModelConfig};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{assert_close, devices, numbers};
use crate::golden::field;
use crate::parameters::parameters;

/// The rounding of f32 through three blocks of weights of this size, with a margin of about ten.
pub const TOLERANCE: f64 = 2e-5;

pub const MODELS: [&str; 5] = ["qwen3.5", "qwen3-next", "mamba2", "xlstm", "rwkv7"];

fn folder(name: &str) -> PathBuf {
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/published");
    golden.join(name)
}

/// A copy of a folder with the weights alone, from the file of this name, and the configuration.
pub fn copied(name: &str, weights: &str) -> TempDir {
    let (from, to) = (folder(name), tempfile::tempdir().expect("a folder"));
    fs::copy(from.join(weights), to.path().join("model.safetensors")).expect("a file");
    if from.join("config.json").exists() {
        fs::copy(from.join("config.json"), to.path().join("config.json")).expect("a file");
    }
    to
}

fn load(path: &Path, device: &burn::tensor::Device) -> AnyLanguageModel {
    let published = Published::open(path).expect("a model");
    published.load(device, FloatDType::F32).expect("weights")
}

#[test]
fn published_models_compute_what_their_authors_do() {
    for kind in MODELS {
        let case = fs::read(folder(kind).join("expected.json")).expect("a file");
        let case: Value = serde_json::from_slice(&case).expect("numbers");
        let size = |name: &str| case[name].as_u64().expect("a number") as usize;
        let (batch, steps, prompt) = (size("batch"), size("steps"), size("prompt"));
        let (weights, gradients) = (
            copied(kind, "model.safetensors"),
            copied(kind, "gradients.safetensors"),
        );
        for (name, device) in devices() {
            let name = format!("{kind} {name}");
            let device = device.autodiff();
            let model = load(weights.path(), &device);
            assert_eq!(Module::num_params(&model), size("parameters"), "{name}");
            let config = Published::open(weights.path())
                .expect("a model")
                .config()
                .clone();
            let parameters_by_formula = config.size().expect("a size").parameters;
            assert_eq!(parameters_by_formula, size("parameters") as u64, "{name}");
            let all: Vec<i32> = field(&case, "tokens").iter().map(|&x| x as i32).collect();
            let all = TensorData::new(all, [batch, steps + 1]);
            let all = Tensor::<2, Int>::from_data(all, &device);
            let (inputs, targets) = (all.clone().narrow(1, 0, steps), all.narrow(1, 1, steps));
            let (logits, _) = model.forward(inputs.clone(), Sequence::new());
            let expected = field(&case, "logits");
            assert_close(&name, &numbers(logits), &expected, TOLERANCE);
            // The prompt at once, then step by step.
            let plain = model.valid();
            let tokens = inputs.clone().inner();
            let (first, mut state) =
                plain.forward(tokens.clone().narrow(1, 0, prompt), Sequence::new());
            let mut parts = vec![first];
            for t in prompt..steps {
                let token = tokens.clone().narrow(1, t, 1).squeeze_dim(1);
                let (logits, next) = plain.step(token, Some(state));
                parts.push(logits.unsqueeze_dim(1));
                state = next;
            }
            let found = numbers(Tensor::cat(parts, 1));
            assert_close(&format!("{name} steps"), &found, &expected, TOLERANCE);
            let (logits, _) = model.forward_padded(inputs, Sequence::new());
            let loss = cross_entropy(logits.flatten(0, 1), targets.flatten(0, 1)).unwrap();
            let expected = case["loss"].as_f64().expect("a number");
            assert_close(&name, &numbers(loss.clone()), &[expected], TOLERANCE);
            let found = parameters(&model, Some(&loss.backward()));
            let expected = parameters(&load(gradients.path(), &device), None);
            // Qwen's files have what is added to 1 in a norm, but for that of a recurrent layer's heads.
            let offset = |parameter: &str| {
                let added = kind.starts_with("qwen") && parameter.ends_with("gamma");
                f64::from(u8::from(added && !parameter.contains("GatedDeltaNet")))
            };
            for ((parameter, found), (_, mut expected)) in found.into_iter().zip(expected) {
                let offset = offset(&parameter);
                expected.iter_mut().for_each(|x| *x -= offset);
                assert_close(
                    &format!("{name} d {parameter}"),
                    &found,
                    &expected,
                    TOLERANCE,
                );
            }
        }
    }
}

#[test]
fn weights_are_loaded_in_sixteen_bits_and_decays_are_not() {
    let device = devices().remove(0).1;
    let published = Published::open(folder("mamba2")).expect("a model");
    assert_eq!(published.dtype().expect("a file"), Some(DType::F32));
    let model = published.load(&device, FloatDType::BF16).expect("weights");
    let AnyLanguageModel::Decoder(model) = model else {
        panic!("expected a decoder");
    };
    assert_eq!(model.embedding.weight.val().dtype(), DType::BF16);
    let riverrun_models::AnyRecurrent::Heads(riverrun_models::AnyHeadLayer::Mamba2(layer)) =
        &model.blocks[0].mixer
    else {
        panic!("expected Mamba-2");
    };
    assert_eq!(layer.decay.a_log.val().dtype(), DType::F32);
}

/// What loading says of a folder whose configuration `change` has changed.
fn refusal(kind: &str, change: impl Fn(&mut Value)) -> String {
    let (copy, device) = (copied(kind, "model.safetensors"), devices().remove(0).1);
    let path = copy.path().join("config.json");
    let mut config = serde_json::from_slice(&fs::read(&path).expect("a file")).expect("JSON");
    change(&mut config);
    fs::write(&path, config.to_string()).expect("a file");
    match Published::open(copy.path()).and_then(|model| model.load(&device, FloatDType::F32)) {
        Ok(_) => panic!("{kind}: expected a refusal"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_has_no_counterpart_is_refused_by_its_name() {
    let refused = |kind: &str, field: &str, value: Value, expected: &str| {
        let error = refusal(kind, |config| config[field] = value.clone());
        assert!(error.contains(expected), "{field}: {error}");
        assert!(!error.contains('\n'), "{field}: {error}");
    };
    refused(
        "mamba2",
        "model_type",
        json!("mamba3"),
        "`model_type` mamba3",
    );
    refused(
        "mamba2",
        "use_bias",
        json!(true),
        "`use_bias`: expected false",
    );
    refused(
        "mamba2",
        "time_step_limit",
        json!([0.0, 0.1]),
        "`time_step_limit`",
    );
    refused("mamba2", "expand", json!(3), "expand");
    refused(
        "mamba2",
        "vocab_size",
        json!(-1),
        "`vocab_size`: expected a whole number",
    );
    refused(
        "mamba2",
        "vocab_size",
        json!(24),
        "backbone.embeddings.weight",
    );
    refused("mamba2", "num_hidden_layers", json!(3), "backbone.layers.2");
    refused("mamba2", "num_hidden_layers", json!(1), "backbone.layers.1");
    refused(
        "mamba2",
        "num_hidden_layers",
        json!(1_000_000_000_u64),
        "layers",
    );
    refused("qwen3-next", "mlp_only_layers", json!([0, 2]), "mixture of");
    refused(
        "qwen3.5",
        "layer_types",
        json!(["sliding_attention"]),
        "sliding_attention",
    );
    refused(
        "qwen3.5",
        "layer_types",
        json!(["full_attention"]),
        "layer_types: expected 3",
    );
    refused(
        "qwen3.5",
        "rope_parameters",
        json!({"rope_type": "yarn"}),
        "`rope_type`",
    );
    refused("qwen3.5", "hidden_act", json!("gelu"), "`hidden_act`");
    refused(
        "qwen3.5",
        "num_attention_heads",
        json!(3),
        "multiple of the key heads",
    );
    let xlstm = [
        (
            "weight_mode",
            json!("fused"),
            "`weight_mode`: expected \"single\"",
        ),
        ("use_bias", json!(true), "`use_bias`: expected false"),
        (
            "add_out_norm",
            json!(false),
            "`add_out_norm`: expected true",
        ),
        ("tie_word_embeddings", json!(true), "`tie_word_embeddings`"),
        ("eps", json!(1e-5), "`eps`: expected"),
        (
            "inference_state_dtype",
            json!("bfloat16"),
            "`inference_state_dtype`",
        ),
        ("embedding_dim", json!(16), "`hidden_size`: expected 16"),
        ("num_blocks", json!(1), "`num_hidden_layers`: expected 1"),
        ("num_heads", json!(0), "num_heads, 0"),
        ("num_heads", json!(3), "qk_dim_factor"),
        ("v_dim_factor", json!(0.5), "mlstm_layer.v.weight"),
        ("v_dim_factor", json!(-1), "v_dim_factor"),
        ("v_dim_factor", json!(1024), "value_dim: expected 1 to 4095"),
        ("qk_dim_factor", json!(128), "key_dim: expected 1 to 256"),
        ("ffn_proj_factor", json!(1e300), "ffn_proj_factor"),
        (
            "ffn_round_up_to_multiple_of",
            json!(0),
            "ffn_round_up_to_multiple_of, 0",
        ),
        ("gate_soft_cap", json!(0), "gate_cap"),
        ("output_logit_soft_cap", json!(-30), "logit_cap"),
        ("vocab_size", json!(24), "backbone.embeddings.weight"),
    ];
    for (field, value, expected) in xlstm {
        refused("xlstm", field, value, expected);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let error = Published::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("expected model.safetensors"), "{error}");
}

#[test]
fn an_index_names_the_files_of_a_model() {
    let (copy, device) = (
        copied("qwen3.5", "model.safetensors"),
        devices().remove(0).1,
    );
    let at = |name: &str| copy.path().join(name);
    fs::rename(at("model.safetensors"), at("model-1.safetensors")).expect("a file");
    let index = |name: &str| {
        let map = json!({"weight_map": {"model.norm.weight": name}}).to_string();
        fs::write(at("model.safetensors.index.json"), map).expect("a file");
        Published::open(copy.path()).and_then(|model| model.load(&device, FloatDType::F32))
    };
    assert!(index("model-1.safetensors").is_ok());
    for name in ["../model-1.safetensors", "/etc/passwd", ".."] {
        let error = index(name).unwrap_err().to_string();
        assert!(error.contains("expected a file beside it"), "{error}");
    }
    assert!(index("model-2.safetensors").is_err());
}

/// The published sizes, by shape alone: no weights are at hand.
#[test]
fn published_sizes_are_those_of_the_models() {
    let qwen = |width: usize,
                inner: usize,
                layers: usize,
                tied: bool,
                values: usize,
                heads: [usize; 2]| {
        json!({
            "model_type": "qwen3_5", "text_config": {
                "vocab_size": 248_320, "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers,
                "num_attention_heads": heads[0], "num_key_value_heads": heads[1], "head_dim": 256,
                "linear_num_key_heads": 16, "linear_num_value_heads": values, "linear_key_head_dim": 128,
                "linear_value_head_dim": 128, "tie_word_embeddings": tied,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
            }
        })
    };
    let mamba = json!({
        "model_type": "mamba2", "vocab_size": 50_288, "hidden_size": 768, "num_hidden_layers": 24, "num_heads": 24,
        "head_dim": 64, "state_size": 128, "n_groups": 1, "tie_word_embeddings": true, "time_step_limit": [0.0, 1e308],
    });
    let xlstm = json!({
        "model_type": "xlstm", "vocab_size": 50_304, "embedding_dim": 4096, "num_blocks": 32, "num_heads": 8, "qk_dim_factor": 0.5,
        "v_dim_factor": 1.0, "ffn_proj_factor": 2.667, "ffn_round_up_to_multiple_of": 64, "weight_mode": "single",
    });
    let models = [
        (qwen(1024, 3584, 24, true, 16, [8, 2]), 752_393_024),
        (qwen(4096, 12_288, 32, false, 32, [16, 4]), 8_953_803_264),
        (mamba, 128_989_632),
        (xlstm, 6_865_424_896),
    ];
    for (config, parameters) in models {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("config.json"), config.to_string()).expect("a file");
        fs::write(folder.path().join("model.safetensors"), "").expect("a file");
        let published = Published::open(folder.path()).expect("a configuration");
        let found = published.config().size().expect("a size").parameters;
        assert_eq!(found, parameters, "{config}");
    }
}

#[test]
fn a_configuration_is_kept_whole() {
    for kind in MODELS {
        let config = Published::open(copied(kind, "model.safetensors").path());
        let config = config.expect("a model").config().clone();
        let text = serde_json::to_string(&config).expect("JSON");
        let read: AnyLanguageModelConfig = serde_json::from_str(&text).expect("a configuration");
        assert_eq!(serde_json::to_string(&read).expect("JSON"), text);
        assert_eq!(read.kind(), config.kind());
    }
}
