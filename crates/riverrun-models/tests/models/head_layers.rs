//! Language models of layers with heads, alone and with attention between them.

use burn::module::Module;
use burn::tensor::{Bool, Int, Tensor, TensorData};
use riverrun::Sequence;
use riverrun_models::{HeadKind, HeadSizes, LanguageModelConfig, RecurrentKind};

use crate::common::{assert_close, devices, numbers};
use crate::streams::TOLERANCE;

/// Three blocks of two heads; with attention, the second has it.
fn config(kind: HeadKind, attention: bool) -> LanguageModelConfig {
    LanguageModelConfig::new(11, 16, 3)
        .with_cell(RecurrentKind::Heads(kind))
        .with_heads(Some(2))
        .with_attention_every(attention.then_some(2))
}

/// Every kind, alone and with attention.
fn all() -> impl Iterator<Item = (HeadKind, bool)> {
    let kinds = HeadKind::ALL.iter();
    kinds.flat_map(|kind| [(*kind, false), (*kind, true)])
}

#[test]
fn chunks_and_steps_agree_with_the_whole() {
    let steps = 19;
    for (name, device) in devices() {
        for (kind, attention) in all() {
            let model = config(kind, attention).init(&device);
            let tokens: Vec<i32> = (0..2 * steps as i32).map(|i| i * 7 % 11).collect();
            let tokens = TensorData::new(tokens, [2, steps]);
            let tokens = Tensor::<2, Int>::from_data(tokens, &device);
            let flags: Vec<bool> = (0..2 * steps).map(|i| i % 13 == 6).collect();
            let flags = TensorData::new(flags, [2, steps]);
            let flags = Tensor::<2, Bool>::from_data(flags, &device);
            let cut = |lengths: &[usize]| {
                let (mut state, mut parts, mut at) = (None, Vec::new(), 0);
                for &length in lengths {
                    let reset = flags.clone().narrow(1, at, length);
                    let sequence = Sequence::from(state).with_reset(reset);
                    let chunk = tokens.clone().narrow(1, at, length);
                    let (logits, next) = model.forward(chunk, sequence);
                    parts.push(logits);
                    (state, at) = (Some(next), at + length);
                }
                numbers(Tensor::cat(parts, 1))
            };
            let what = format!("{name} {kind}, attention: {attention}");
            let whole = cut(&[steps]);
            assert_close(&what, &cut(&[1, 8, 2, 8]), &whole, TOLERANCE);
            assert_close(&what, &cut(&vec![1; steps]), &whole, TOLERANCE);
        }
    }
}

#[test]
fn the_parameters_of_a_model_are_counted_before_it_exists() {
    let device = devices().into_iter().next().expect("a device").1;
    for (kind, attention) in all() {
        for expansion in [1, 3] {
            let config = config(kind, attention).with_expansion(expansion);
            config.check().expect("a model that can exist");
            let size = config.size().expect("a size");
            let model = config.init(&device);
            let what = format!("{kind}, attention: {attention}, expansion {expansion}");
            assert_eq!(size.parameters, model.num_params() as u64, "{what}");
            assert!(size.saved_per_token > 0, "{what}");
        }
    }
}

#[test]
fn models_run_on_nothing_and_on_sequences_of_several_lengths() {
    for (name, device) in devices() {
        let device = device.autodiff();
        for (kind, attention) in all() {
            let model = config(kind, attention).init(&device);
            let what = format!("{name} {kind}, attention: {attention}");
            for [batch, steps] in [[0, 5], [2, 0], [0, 0]] {
                let tokens = Tensor::<2, Int>::zeros([batch, steps], &device);
                let (logits, state) = model.forward(tokens.clone(), Sequence::new());
                assert_eq!(logits.dims(), [batch, steps, 11], "{what}");
                let (logits, _) = model.forward(tokens, Sequence::new().with_state(state));
                let _ = logits.sum().backward();
            }
            let tokens = Tensor::<2, Int>::ones([2, 5], &device);
            let ragged = Sequence::new().with_lengths(&[5, 2]);
            let found = model.try_forward(tokens, ragged);
            // Attention says that it has no lengths.
            assert_eq!(found.is_err(), attention, "{what}");
        }
    }
}

#[test]
fn heads_are_chosen_by_the_channels_of_a_value() {
    for (width, expansion, [heads, key, value]) in [
        (128, 1, [2, 64, 64]),
        (64, 4, [4, 16, 64]),
        (96, 1, [2, 48, 48]),
        (16, 1, [1, 16, 16]),
    ] {
        let sizes = HeadSizes::new(width, None, expansion);
        let found = [sizes.heads, sizes.key, sizes.value];
        assert_eq!(found, [heads, key, value], "{width} {expansion}");
    }
}

#[test]
fn a_model_that_cannot_exist_is_refused_by_its_field() {
    let ok = || config(HeadKind::Kda, false);
    let mut huge = ok().with_heads(None);
    huge.width = usize::MAX;
    let cases = [
        ("heads", ok().with_heads(Some(3))),
        ("heads", ok().with_heads(Some(0))),
        ("heads", ok().with_heads(Some(usize::MAX))),
        (
            "heads",
            ok().with_cell(RecurrentKind::MinGru)
                .with_attention_every(Some(2))
                .with_heads(Some(3)),
        ),
        ("attention_every", ok().with_attention_every(Some(0))),
        (
            "window",
            ok().with_attention_every(Some(2)).with_window(Some(0)),
        ),
        ("value_dim", ok().with_expansion(64)),
        (
            "value_dim",
            ok().with_cell(RecurrentKind::Heads(HeadKind::MLstm))
                .with_expansion(512),
        ),
        ("width", huge),
    ];
    for (field, config) in cases {
        let error = config.check().expect_err(field).to_string();
        assert!(error.contains(field), "{field}: {error}");
    }
}
