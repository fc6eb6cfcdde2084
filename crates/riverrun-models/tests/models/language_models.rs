//! The language model: chunks and steps against the whole, and a saved model against the one that was saved.

use burn::module::{Module, ModuleMapper, Param};
use burn::store::ModuleRecord;
use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};
use riverrun::Sequence;
use riverrun::nn::quantized::{Bits, quantize};
use riverrun::ops::cross_entropy;
use riverrun_models::{
    AnyLanguageModel, AnyLanguageModelConfig, GriffinConfig, LanguageModel, LanguageModelConfig,
    LanguageModelKind, RecurrentKind, TemporalMixing,
};

use crate::common::{assert_close, devices, numbers};
use crate::parameters::parameters;

/// A layer on a gate that has no layer of its own.
fn gated() -> RecurrentKind {
    "min-lstm-tanh".parse().expect("a gate")
}

#[test]
fn kinds_are_known_by_their_names() {
    for name in RecurrentKind::names() {
        let kind: RecurrentKind = name.parse().expect("a kind");
        assert_eq!(kind.name(), name);
        let text = serde_json::to_string(&kind).expect("a name");
        assert_eq!(text, format!("\"{name}\""));
        assert_eq!(
            serde_json::from_str::<RecurrentKind>(&text).ok(),
            Some(kind)
        );
    }
    assert_eq!(gated().name(), "min-lstm-tanh");
    assert!("no-layer".parse::<RecurrentKind>().is_err());
    assert!(serde_json::from_str::<RecurrentKind>("\"no-layer\"").is_err());
}

#[test]
fn chunks_and_steps_agree_with_the_whole() {
    for (name, device) in devices() {
        for cell in RecurrentKind::ALL.into_iter().chain([gated()]) {
            let model = LanguageModelConfig::new(11, 16, 2)
                .with_cell(cell)
                .with_expansion(2)
                .init(&device);
            let tokens: Vec<i32> = (0..2 * 40).map(|i| i * 7 % 11).collect();
            let tokens = Tensor::<2, Int>::from_data(TensorData::new(tokens, [2, 40]), &device);
            let (whole, _) = model.forward(tokens.clone(), Sequence::new());
            let (first, state) = model.forward(tokens.clone().narrow(1, 0, 33), Sequence::new());
            let (second, _) =
                model.forward(tokens.clone().narrow(1, 33, 7), Sequence::from(Some(state)));
            let chunked = numbers(Tensor::cat(vec![first, second], 1));
            assert_close(
                &format!("{name} {cell} chunks"),
                &chunked,
                &numbers(whole.clone()),
                1e-5,
            );
            let mut state = None;
            for t in 0..5 {
                let (logits, next) =
                    model.step(tokens.clone().narrow(1, t, 1).squeeze_dim(1), state);
                let expected = numbers(whole.clone().narrow(1, t, 1));
                assert_close(
                    &format!("{name} {cell} step {t}"),
                    &numbers(logits),
                    &expected,
                    1e-5,
                );
                state = Some(next);
            }
        }
    }
}

/// Every weight of a model, one after the other.
fn weights(model: &LanguageModel) -> Vec<f64> {
    let weights = parameters(model, None).into_iter();
    weights.flat_map(|(_, numbers)| numbers).collect()
}

#[test]
fn a_saved_model_opens_again_with_the_same_outputs() {
    let folder = std::env::temp_dir().join(format!("riverrun-models-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    for (name, device) in devices() {
        let config = LanguageModelConfig::new(11, 16, 2).with_cell(RecurrentKind::MinLstm);
        let model = config.init(&device);
        let tokens =
            Tensor::<2, Int>::from_data(TensorData::new(vec![3, 1, 4, 1, 5], [1, 5]), &device);
        let (before, _) = model.forward(tokens.clone(), Sequence::new());
        let kept = weights(&model);
        let path = folder.join(format!("{}.bpk", name.replace(':', "-")));
        model.into_record().save(&path).expect("saving");
        let record = ModuleRecord::load(&path).expect("loading");
        let again = config
            .init(&device)
            .try_load_record(record)
            .expect("the same shapes");
        assert_close(&name, &weights(&again), &kept, 0.0);
        // While another thread tunes a product, this one takes the first kernel there is, which may sum in another order.
        let (after, _) = again.forward(tokens, Sequence::new());
        assert_close(&name, &numbers(after), &numbers(before), 1e-5);
    }
    std::fs::remove_dir_all(&folder).expect("removing the temporary folder");
}

#[test]
fn the_parameters_of_a_model_are_counted_before_it_exists() {
    let device = devices().into_iter().next().expect("a device").1;
    for cell in RecurrentKind::ALL.into_iter().chain([gated()]) {
        for (expansion, bias, time_scale) in
            [(1, true, 1), (2, false, 1), (3, true, 8), (1, false, 8)]
        {
            let config = LanguageModelConfig::new(11, 16, 2)
                .with_cell(cell)
                .with_expansion(expansion)
                .with_bias(bias)
                .with_time_scale(time_scale)
                .with_mlp(3)
                .with_tied(Some(expansion == 3));
            config.check().expect("a model that can exist");
            let counted = config.size().expect("a size").parameters;
            let model = config.init(&device);
            assert_eq!(
                counted,
                model.num_params() as u64,
                "{cell} expansion {expansion} bias {bias} time_scale {time_scale}"
            );
        }
    }
}

#[test]
fn a_tied_model_trains_its_embedding_from_both_sides() {
    for (name, device) in devices() {
        let device = device.autodiff();
        let model = LanguageModelConfig::new(11, 16, 1)
            .with_tied(Some(true))
            .init(&device);
        let tokens = TensorData::new(vec![3, 1, 4], [1, 3]);
        let tokens = Tensor::<2, Int>::from_data(tokens, &device);
        let (logits, _) = model.forward(tokens, Sequence::new());
        assert_eq!(logits.dims(), [1, 3, 11], "{name}");
        let grads = logits.sum().backward();
        let grad = model
            .embedding
            .weight
            .val()
            .grad(&grads)
            .expect("a gradient");
        let grad = numbers(grad);
        // Every row is a column of the projection; the rows of the tokens are inputs too.
        let row = |token: usize| &grad[16 * token..16 * (token + 1)];
        assert!(row(0).iter().any(|&g| g != 0.0), "{name}");
        assert_close(&name, row(0), row(2), 1e-6);
        assert_ne!(row(0), row(3), "{name}");
    }
}

#[test]
fn padding_of_the_vocabulary_changes_no_loss_and_no_gradient() {
    for (name, device) in devices() {
        let device = device.autodiff();
        for (vocab, tied) in [(11, false), (11, true), (1029, false), (16, false)] {
            let what = format!("{name} {vocab} symbols, tied {tied}");
            let model = LanguageModelConfig::new(vocab, 16, 1)
                .with_tied(Some(tied))
                .init(&device);
            let tokens = |values: Vec<i32>| {
                Tensor::<2, Int>::from_data(TensorData::new(values, [2, 3]), &device)
            };
            let inputs = tokens(vec![3, 1, 4, 1, 5, 9]);
            let targets = tokens(vec![1, 4, 10, 5, 9, 2]);
            let loss = |logits: Tensor<3>| {
                let [batch, steps, columns] = logits.dims();
                let rows = batch * steps;
                let loss = cross_entropy(
                    logits.reshape([rows, columns]),
                    targets.clone().reshape([rows]),
                )
                .unwrap();
                let grads = loss.clone().backward();
                let grad = |weight: Tensor<2>| numbers(weight.grad(&grads).expect("a gradient"));
                let embedding = grad(model.embedding.weight.val());
                let out = model.out.as_ref().map(|out| grad(out.weight.val()));
                (numbers(loss), embedding, out.unwrap_or_default())
            };
            let (plain, _) = model.forward(inputs.clone(), Sequence::new());
            let (padded, _) = model.forward_padded(inputs, Sequence::new());
            let columns = padded.dims()[2];
            assert!(
                columns >= vocab && (name == "cpu" || columns % 8 == 0),
                "{what}"
            );
            let (expected, found) = (loss(plain), loss(padded));
            assert_close(&what, &found.0, &expected.0, 1e-5);
            assert_close(&what, &found.1, &expected.1, 1e-5);
            assert_close(&what, &found.2, &expected.2, 1e-5);
        }
    }
}

#[test]
fn a_model_that_cannot_exist_is_refused_by_its_field() {
    let ok = || LanguageModelConfig::new(11, 16, 2);
    let huge = usize::MAX;
    let cases = [
        ("vocab", LanguageModelConfig::new(0, 16, 2)),
        ("vocab", LanguageModelConfig::new(huge, 16, 2)),
        ("width", LanguageModelConfig::new(11, 0, 2)),
        ("width", LanguageModelConfig::new(11, huge, 2)),
        ("width", LanguageModelConfig::new(11, 1 << 40, 2)),
        ("layers", LanguageModelConfig::new(11, 16, 0)),
        ("layers", LanguageModelConfig::new(11, 16, 1_000_000)),
        ("layers", LanguageModelConfig::new(11, 16, huge)),
        ("expansion", ok().with_expansion(0)),
        ("expansion", ok().with_expansion(huge)),
        ("mlp", ok().with_mlp(0)),
        ("mlp", ok().with_mlp(huge)),
        ("time_scale", ok().with_time_scale(0)),
        ("dropout", ok().with_dropout(1.0)),
        ("dropout", ok().with_dropout(-1.0)),
        ("dropout", ok().with_dropout(f64::NAN)),
    ];
    for (field, config) in cases {
        let error = config.check().expect_err(field).to_string();
        assert!(error.contains(field), "{field}: {error}");
    }
}

#[test]
fn an_estimate_overflows_into_none() {
    let size = LanguageModelConfig::new(11, 16, 2).size().expect("a size");
    assert!(size.training_bytes(32, 4).expect("a small model") > 16 * size.parameters);
    assert_eq!(size.training_bytes(u64::MAX, 4), None);
    assert_eq!(size.inference_bytes(u64::MAX, 4), None);
}

/// A first step without a factor does not depend on `Λ`, and neither does any other of a sequence of one.
#[test]
fn a_single_step_of_griffin_has_a_gradient_of_zeros() {
    for (name, device) in devices() {
        let device = device.autodiff();
        let model = GriffinConfig::new(5, 8, 1, 2).init(&device);
        let tokens = Tensor::<2, Int>::ones([1, 1], &device);
        let (logits, _) = model.forward(tokens, Sequence::new());
        let grads = logits.powi_scalar(2).sum().backward();
        let TemporalMixing::Recurrence(recurrence) = &model.blocks[0].temporal else {
            panic!("the first block is recurrent");
        };
        let gradient = recurrence.rg_lru.lambda.val().grad(&grads);
        let gradient = numbers(gradient.expect("a gradient"));
        assert_eq!(gradient, [0.0; 8], "{name}");
    }
}

#[test]
fn language_models_run_on_nothing() {
    for (name, device) in devices() {
        let device = device.autodiff();
        for cell in RecurrentKind::ALL {
            for expansion in [1, 2] {
                let model = LanguageModelConfig::new(11, 16, 2)
                    .with_cell(cell)
                    .with_expansion(expansion)
                    .with_tied(Some(expansion == 2))
                    .init(&device);
                for [batch, steps] in [[0, 5], [2, 0], [0, 0]] {
                    let tokens = Tensor::<2, Int>::zeros([batch, steps], &device);
                    let (logits, state) = model.forward(tokens.clone(), Sequence::new());
                    let what = format!("{name} {cell} B {batch} T {steps}");
                    assert_eq!(logits.dims(), [batch, steps, 11], "{what}");
                    let (logits, _) = model.forward(tokens, Sequence::new().with_state(state));
                    let _ = logits.sum().backward();
                }
            }
        }
    }
}

#[test]
fn a_table_by_columns_changes_no_bit() {
    struct Cast(FloatDType);
    impl ModuleMapper for Cast {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.map(|tensor| tensor.cast(self.0))
        }
    }
    let device = Device::flex();
    let (vocab, width) = (37, 16);
    let tied: [AnyLanguageModelConfig; 4] = [
        LanguageModelConfig::new(vocab, width, 2)
            .with_cell(gated())
            .with_tied(Some(true))
            .into(),
        GriffinConfig::new(vocab, width, 3, 2).into(),
        LanguageModelKind::Gpt2.config(vocab, width, 2, 8),
        LanguageModelKind::Decoder.config(vocab, width, 2, 8),
    ];
    for config in tied {
        let model = config.init(&device);
        for dtype in [FloatDType::F32, FloatDType::BF16] {
            let model = model.clone().map(&mut Cast(dtype));
            let turned = model.clone().with_table_by_columns();
            for tokens in [vec![3, 36, 0, 7, 7], vec![1]] {
                let tokens = Tensor::<1, Int>::from_data(&tokens[..], &device);
                let of = |model: &AnyLanguageModel| {
                    let (logits, _) = model.forward(tokens.clone().unsqueeze(), Sequence::new());
                    numbers(logits)
                };
                assert_eq!(of(&model), of(&turned), "{}", config.kind());
            }
        }
    }
}

#[test]
fn a_model_of_few_bits_is_close_and_steps_as_its_whole_does() {
    let device = Device::flex();
    device.seed(5);
    let (vocab, width) = (200, 128);
    let models: [AnyLanguageModelConfig; 4] = [
        LanguageModelConfig::new(vocab, width, 2)
            .with_tied(Some(true))
            .into(),
        GriffinConfig::new(vocab, width, 3, 2).into(),
        LanguageModelKind::Gpt2.config(vocab, width, 2, 16),
        LanguageModelKind::Decoder.config(vocab, width, 2, 16),
    ];
    for config in models {
        let name = config.kind();
        let model = config.init(&device);
        let tokens = Tensor::<2, Int>::from_data([[3, 150, 0, 7, 7, 199, 20, 1]], &device);
        let (whole, _) = model.forward(tokens.clone(), Sequence::new());
        let expected = numbers(whole);
        let size = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
        for (bits, most) in [(Bits::Eight, 0.02), (Bits::Four, 0.4)] {
            let own = quantize(model.clone(), bits).expect("the CPU");
            let (logits, _) = own.forward(tokens.clone(), Sequence::new());
            let found = numbers(logits);
            let errors: Vec<f64> = found.iter().zip(&expected).map(|(x, y)| x - y).collect();
            let error = size(&errors) / size(&expected);
            assert!(error > 0.0 && error < most, "{name}, {bits:?}: {error}");
            let (mut state, mut by_steps) = (None, Vec::new());
            for step in 0..8 {
                let token = tokens.clone().narrow(1, step, 1).squeeze_dim(1);
                let (logits, next) = own.step(token, state);
                by_steps.extend(numbers(logits));
                state = Some(next);
            }
            assert_close(&format!("{name}, {bits:?}"), &by_steps, &found, 1e-4);
        }
    }
}
