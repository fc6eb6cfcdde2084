//! GPT-2 and Griffin against transformers: files of weights, results, gradients.

use std::path::PathBuf;

use burn::module::Module;
use burn::tensor::{Gradients, Int, Tensor, TensorData};
use riverrun::Sequence;
use riverrun::ops::cross_entropy;
use riverrun_models::weights::{gpt2_from_huggingface, griffin_from_huggingface};
use riverrun_models::{Gpt2Config, GriffinConfig};
use serde_json::Value;
use tempfile::NamedTempFile;

use crate::common::{assert_close, devices, numbers};
use crate::golden::field;
use crate::parameters::parameters;

/// The rounding of f32 through four blocks of weights of this size, with a margin of about ten.
const TOLERANCE: f64 = 2e-5;

fn file(name: &str) -> PathBuf {
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    golden.join(name)
}

fn size(case: &Value, name: &str) -> usize {
    case[name].as_u64().expect("a number") as usize
}

/// The inputs `[B, T]` and the targets after them.
fn tokens(case: &Value, device: &burn::tensor::Device) -> [Tensor<2, Int>; 2] {
    let (batch, steps) = (size(case, "batch"), size(case, "steps"));
    let all: Vec<i32> = field(case, "tokens").iter().map(|&x| x as i32).collect();
    let all = TensorData::new(all, [batch, steps + 1]);
    let all = Tensor::<2, Int>::from_data(all, device);
    [all.clone().narrow(1, 0, steps), all.narrow(1, 1, steps)]
}

/// Compares the gradients of a model with those that were loaded as the weights of another one.
fn assert_gradients(
    device: &str,
    model: &impl Module,
    gradients: &Gradients,
    expected: &impl Module,
    offset: impl Fn(&str) -> f64,
) {
    let found = parameters(model, Some(gradients));
    for ((name, found), (_, mut expected)) in found.into_iter().zip(parameters(expected, None)) {
        expected.iter_mut().for_each(|x| *x -= offset(&name));
        assert_close(&format!("{device} d {name}"), &found, &expected, TOLERANCE);
    }
}

#[test]
fn gpt2_computes_what_transformers_does() {
    let case: Value = serde_json::from_str(include_str!("../golden/gpt2.json")).unwrap();
    let [vocab, width, layers, heads, positions] =
        ["vocab", "width", "layers", "heads", "positions"].map(|name| size(&case, name));
    for (name, device) in devices() {
        let device = device.autodiff();
        let config = Gpt2Config::new(vocab, width, layers, heads).with_positions(positions);
        let load = |path| gpt2_from_huggingface(config.init(&device), file(path)).expect(path);
        let model = load("gpt2/weights.safetensors");
        assert_eq!(model.num_params(), size(&case, "parameters"));
        let [inputs, targets] = tokens(&case, &device);
        let (logits, _) = model.forward(inputs.clone(), Sequence::new());
        let expected = field(&case, "logits");
        assert_close(&name, &numbers(logits), &expected, TOLERANCE);
        let (logits, _) = model.forward_padded(inputs.clone(), Sequence::new());
        let loss = cross_entropy(logits.flatten(0, 1), targets.flatten(0, 1)).unwrap();
        let expected = case["loss"].as_f64().expect("a number");
        assert_close(&name, &numbers(loss.clone()), &[expected], TOLERANCE);
        let gradients = loss.backward();
        let expected = load("gpt2/gradients.safetensors");
        assert_gradients(&name, &model, &gradients, &expected, |_| 0.0);
    }
}

#[test]
fn griffin_computes_what_transformers_does() {
    let case: Value = serde_json::from_str(include_str!("../golden/griffin.json")).unwrap();
    let [vocab, width, layers, heads, window] =
        ["vocab", "width", "layers", "heads", "window"].map(|name| size(&case, name));
    for (name, device) in devices() {
        let device = device.autodiff();
        let config = GriffinConfig::new(vocab, width, layers, heads).with_window(window);
        let load = |path| griffin_from_huggingface(config.init(&device), file(path)).expect(path);
        let model = load("griffin/weights.safetensors");
        assert_eq!(model.num_params(), size(&case, "parameters"));
        let [inputs, targets] = tokens(&case, &device);
        let (logits, _) = model.forward(inputs.clone(), Sequence::new());
        let expected = field(&case, "logits");
        assert_close(&name, &numbers(logits.clone()), &expected, TOLERANCE);
        // The prompt at once, then step by step, as transformers has checked of itself.
        let (prompt, steps) = (size(&case, "prompt"), size(&case, "steps"));
        let plain = model.valid();
        let start = inputs.clone().inner().narrow(1, 0, prompt);
        let (first, mut state) = plain.forward(start, Sequence::new());
        let mut parts = vec![first];
        for t in prompt..steps {
            let token = inputs.clone().inner().narrow(1, t, 1);
            let (logits, next) = plain.step(token.squeeze_dim(1), Some(state));
            parts.push(logits.unsqueeze_dim(1));
            state = next;
        }
        let found = numbers(Tensor::cat(parts, 1));
        assert_close(&format!("{name} steps"), &found, &expected, TOLERANCE);
        let (logits, _) = model.forward_padded(inputs, Sequence::new());
        let loss = cross_entropy(logits.flatten(0, 1), targets.flatten(0, 1)).unwrap();
        let expected = case["loss"].as_f64().expect("a number");
        assert_close(&name, &numbers(loss.clone()), &[expected], TOLERANCE);
        let gradients = loss.backward();
        let expected = load("griffin/gradients.safetensors");
        // The file's weights of a norm are added to 1, and so were the gradients.
        let offset = |name: &str| f64::from(u8::from(name.ends_with("gamma")));
        assert_gradients(&name, &model, &gradients, &expected, offset);
    }
}

/// A safetensors file like another, with a copy of one of its tensors whose numbers `change` may change, by its index.
fn with_copy(of: &str, from: &str, to: &str, change: impl Fn(usize, f32) -> f32) -> NamedTempFile {
    let bytes = std::fs::read(file(of)).expect(of);
    let (size, rest) = bytes.split_at(8);
    let size = u64::from_le_bytes(size.try_into().expect("eight bytes")) as usize;
    let (header, data) = rest.split_at(size);
    let mut header: Value = serde_json::from_slice(header).expect("a header");
    let mut tensor = header[from].clone();
    assert_eq!(tensor["dtype"], "F32");
    let offset = |i: usize| tensor["data_offsets"][i].as_u64().expect("a number") as usize;
    let numbers = data[offset(0)..offset(1)].chunks_exact(4).enumerate();
    let copy = numbers.flat_map(|(i, bytes)| {
        change(i, f32::from_le_bytes(bytes.try_into().expect("four bytes"))).to_le_bytes()
    });
    let copy: Vec<u8> = copy.collect();
    let mut data = data.to_vec();
    match from == to {
        true => data[offset(0)..offset(1)].copy_from_slice(&copy),
        false => {
            tensor["data_offsets"] = Value::from(vec![data.len(), data.len() + copy.len()]);
            header[to] = tensor;
            data.extend(copy);
        }
    }
    let header = header.to_string();
    let size = (header.len() as u64).to_le_bytes();
    let file = tempfile::Builder::new().suffix(".safetensors").tempfile();
    let file = file.expect("a file");
    let whole = [&size[..], header.as_bytes(), &data].concat();
    std::fs::write(file.path(), whole).expect("a file");
    file
}

#[test]
fn a_head_of_its_own_and_numbers_that_are_not_finite_are_refused() {
    let device = devices().remove(0).1;
    let case: Value = serde_json::from_str(include_str!("../golden/gpt2.json")).unwrap();
    let [vocab, width, layers, heads, positions] =
        ["vocab", "width", "layers", "heads", "positions"].map(|name| size(&case, name));
    let config = Gpt2Config::new(vocab, width, layers, heads).with_positions(positions);
    let gpt2 = |from: &str, to: &str, change: fn(usize, f32) -> f32| {
        let file = with_copy("gpt2/weights.safetensors", from, to, change);
        let loaded = gpt2_from_huggingface(config.init(&device), file.path());
        loaded.map(drop).map_err(|error| error.to_string())
    };
    let case: Value = serde_json::from_str(include_str!("../golden/griffin.json")).unwrap();
    let [vocab, width, layers, heads, window] =
        ["vocab", "width", "layers", "heads", "window"].map(|name| size(&case, name));
    let config = GriffinConfig::new(vocab, width, layers, heads).with_window(window);
    let griffin = |from: &str, to: &str, change: fn(usize, f32) -> f32| {
        let file = with_copy("griffin/weights.safetensors", from, to, change);
        let loaded = griffin_from_huggingface(config.init(&device), file.path());
        loaded.map(drop).map_err(|error| error.to_string())
    };
    type Load<'a> = &'a dyn Fn(&str, &str, fn(usize, f32) -> f32) -> Result<(), String>;
    let models: [(Load, &str); 2] = [
        (&gpt2, "transformer.wte.weight"),
        (&griffin, "model.embed_tokens.weight"),
    ];
    for (load, table) in models {
        const HEAD: &str = "lm_head.weight";
        assert_eq!(load(table, HEAD, |_, x| x), Ok(()));
        for change in [|_, _| 0.0, |i, x| if i == 7 { x + 1e-6 } else { x }] {
            let refused = load(table, HEAD, change).expect_err("another head");
            assert!(refused.contains(HEAD), "{refused}");
        }
        for change in [
            |_, _| f32::NAN,
            |i, x| if i == 5 { f32::INFINITY } else { x },
        ] {
            let refused = load(table, table, change).expect_err("no number");
            assert!(refused.contains(table), "{refused}");
        }
    }
}
