//! GPT-2: a rollout; sizes; refusals.

use burn::module::Module;
use burn::tensor::{Int, Tensor, TensorData};
use riverrun::{Error, Sequence};
use riverrun_models::{
    AnyLanguageModel, AnyLanguageModelConfig, AnyLmState, Gpt2Config, GriffinConfig,
    LanguageModelConfig, LanguageModelKind,
};

use crate::common::{assert_close, devices, numbers};
use crate::streams::{STEPS, TOLERANCE, tokens};

pub fn config() -> Gpt2Config {
    Gpt2Config::new(13, 16, 2, 2).with_positions(STEPS + 50)
}

/// Fifty tokens, each the likeliest after those before it, by steps with the cache and by whole sequences.
#[test]
fn a_rollout_by_steps_is_that_by_sequences() {
    let Some((_, device)) = devices().into_iter().next() else {
        return;
    };
    let model = config().init(&device);
    let likeliest = |logits: &Tensor<2>| -> i32 {
        let token = logits.clone().argmax(1).into_data().iter::<i32>().next();
        token.expect("a row")
    };
    let (mut all, mut state) = (vec![3], None);
    for _ in 0..50 {
        let last = *all.last().expect("a token");
        let (logits, next) = model.step(Tensor::<1, Int>::from_data([last], &device), state);
        all.push(likeliest(&logits));
        let whole = TensorData::new(all[..all.len() - 1].to_vec(), [1, all.len() - 1]);
        let whole = Tensor::<2, Int>::from_data(whole, &device);
        let (expected, _) = model.forward(whole, Sequence::new());
        let expected = expected.narrow(1, all.len() - 2, 1).squeeze_dim::<2>(1);
        assert_close("logits", &numbers(logits), &numbers(expected), TOLERANCE);
        state = Some(next);
    }
    assert_eq!(state.expect("a state").position(), 50);
}

#[test]
fn the_published_sizes_are_counted() {
    // 50257·768 + 1024·768 + 12 (12·768² + 13·768) + 2·768, which no tensor has to be made for.
    let size = Gpt2Config::small().size().expect("a size");
    assert_eq!(size.parameters, 124_439_808);
    let medium = Gpt2Config::new(50_257, 1024, 24, 16);
    assert_eq!(medium.size().unwrap().parameters, 354_823_168);
    // RecurrentGemma 2B.
    let griffin = GriffinConfig::new(256_000, 2560, 26, 10);
    assert_eq!(griffin.size().unwrap().parameters, 2_682_862_080);
}

#[test]
fn sizes_are_those_of_the_models() {
    let Some((_, device)) = devices().into_iter().next() else {
        return;
    };
    let configs: [AnyLanguageModelConfig; 5] = [
        config().into(),
        Gpt2Config::new(7, 8, 3, 2).with_mlp(3).into(),
        GriffinConfig::new(13, 16, 7, 2).into(),
        GriffinConfig::new(13, 16, 2, 4)
            .with_d_rnn(Some(24))
            .with_gate_blocks(Some(3))
            .with_mlp(2)
            .into(),
        LanguageModelConfig::new(11, 8, 2).into(),
    ];
    for config in configs {
        let model = config.init(&device);
        let parameters = config.size().expect("a size").parameters;
        assert_eq!(Module::num_params(&model) as u64, parameters, "{config:?}");
    }
}

#[test]
fn a_configuration_is_read_from_its_file() {
    let configs: [(AnyLanguageModelConfig, &str); 3] = [
        (config().into(), "gpt2"),
        (GriffinConfig::new(13, 16, 3, 2).into(), "griffin"),
        (LanguageModelConfig::new(11, 8, 2).into(), "min-gru"),
    ];
    for (config, name) in configs {
        let text = serde_json::to_string(&config).unwrap();
        let read: AnyLanguageModelConfig = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
        assert_eq!(read.kind().name(), name);
        assert_eq!(name.parse::<LanguageModelKind>().unwrap(), read.kind());
    }
    // A file of a recurrent model has no kind.
    let alone = serde_json::to_string(&LanguageModelConfig::new(11, 8, 2)).unwrap();
    let any = AnyLanguageModelConfig::from(LanguageModelConfig::new(11, 8, 2));
    assert_eq!(serde_json::to_string(&any).unwrap(), alone);
    let unknown = "gpt5".parse::<LanguageModelKind>().unwrap_err();
    assert!(
        unknown
            .to_string()
            .contains("griffin, gpt2, decoder, rwkv, linear")
    );
}

#[test]
fn what_does_not_fit_is_refused() {
    let Some((_, device)) = devices().into_iter().next() else {
        return;
    };
    let field = |config: Gpt2Config, field: &str| match config.check() {
        Err(Error::Invalid(reason)) => assert!(reason.contains(field), "{reason}"),
        other => panic!("{other:?}"),
    };
    field(Gpt2Config::new(0, 16, 3, 2), "vocab");
    field(Gpt2Config::new(13, 16, 3, 3), "heads");
    field(config().with_positions(0), "positions");
    field(config().with_epsilon(0.0), "epsilon");
    field(config().with_mlp(usize::MAX), "mlp");
    let model = config().init(&device);
    let long = tokens(STEPS + 51, &device);
    let found = model.try_forward(long, Sequence::new());
    assert!(matches!(found.map(|_| ()), Err(Error::Invalid(reason)) if reason.contains("71")));
    let (_, state) = model.forward(tokens(STEPS, &device), Sequence::new());
    let next = Sequence::from(Some(state.clone()));
    let found = model.try_forward(tokens(51, &device), next);
    assert!(matches!(found.map(|_| ()), Err(Error::Invalid(_))));
    let mut short = state.clone();
    short.blocks.pop();
    let found = model.try_forward(tokens(2, &device), Sequence::from(Some(short)));
    assert!(matches!(found.map(|_| ()), Err(Error::Shape { .. })));
    let other = AnyLanguageModel::Griffin(GriffinConfig::new(13, 16, 3, 2).init(&device));
    let start = Sequence::from(Some(AnyLmState::Gpt2(state)));
    let found = other.try_forward(tokens(2, &device), start);
    assert!(matches!(found.map(|_| ()), Err(Error::Unsupported(_))));
}
