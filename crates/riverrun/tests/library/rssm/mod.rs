//! The recurrent state-space model against the published formulas in numpy, and its promises.

mod edges;
mod formulas;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Bool, Device, FloatDType, Int, Tensor, TensorData};
use riverrun::Sequence;
use riverrun::nn::{Observed, Rssm, RssmConfig, RssmState};

use crate::common::{assert_close, devices, numbers};
use crate::key;

/// How a model observes: as users call it, or with a graph of every step.
#[derive(Debug, Clone, Copy)]
enum Form {
    Steps,
    Sequence,
}

const FORMS: [Form; 2] = [Form::Steps, Form::Sequence];

impl Form {
    fn observe(
        self,
        model: &Rssm,
        tokens: Tensor<3>,
        actions: Tensor<3>,
        key: Tensor<1, Int>,
        sequence: Sequence<RssmState>,
    ) -> Observed {
        match self {
            Self::Steps => model
                .observe_by_steps(tokens, actions, key, sequence)
                .unwrap(),
            Self::Sequence => model.observe(tokens, actions, key, sequence),
        }
    }
}

fn small(device: &Device) -> Rssm {
    device.seed(1);
    RssmConfig::new(3, 2)
        .with_deter(16)
        .with_hidden(12)
        .with_stoch(4)
        .with_classes(5)
        .with_blocks(4)
        .init(device)
}

fn inputs(batch: usize, steps: usize, device: &Device) -> (Tensor<3>, Tensor<3>) {
    let wave = |width: usize| {
        let n = batch * steps * width;
        let data: Vec<f32> = (0..n)
            .map(|i| ((i * 37) % 23) as f32 / 11.0 - 1.0)
            .collect();
        Tensor::<3>::from_data(TensorData::new(data, [batch, steps, width]), device)
    };
    (wave(3), wave(2))
}

#[test]
fn a_reset_starts_from_the_zero_state() {
    for (name, device) in devices() {
        let model = small(&device);
        let (tokens, actions) = inputs(2, 3, &device);
        let resets =
            Tensor::<2, Bool>::from_data([[true, false, false], [true, false, false]], &device);
        let dirty = RssmState::new(
            Tensor::ones([2, 16], &device),
            Tensor::ones([2, 20], &device),
        );
        let key = key([1, 2, 3, 4], &device);
        let restarted = model.observe(
            tokens.clone(),
            actions.clone(),
            key.clone(),
            Sequence::from(Some(dirty)).with_reset(resets),
        );
        // The action of a step that restarts does not count either.
        let rest = actions.narrow(1, 1, 2);
        let actions = Tensor::cat(vec![Tensor::zeros([2, 1, 2], &device), rest], 1);
        let fresh = model.observe(tokens, actions, key, Sequence::new());
        assert_close(
            &name,
            &numbers(restarted.deter),
            &numbers(fresh.deter),
            1e-6,
        );
        assert_eq!(numbers(restarted.stoch), numbers(fresh.stoch));
    }
}

#[test]
fn a_key_decides_what_is_drawn() {
    let mut all = Vec::new();
    for (_, device) in devices() {
        let model = small(&device);
        let (_, actions) = inputs(8, 6, &device);
        let start = || model.initial(8, &device, FloatDType::F32);
        let draw = |word| {
            let imagined = model.imagine(actions.clone(), key([word, 0, 0, 0], &device), start());
            numbers(imagined.stoch)
        };
        let samples = draw(1);
        assert_eq!(samples, draw(1));
        assert_ne!(samples, draw(2));
        // One class of each.
        for vector in samples.chunks(5) {
            assert_eq!(vector.iter().sum::<f64>(), 1.0);
            assert_eq!(vector.iter().filter(|x| **x == 1.0).count(), 1);
        }
        all.push(samples.len());
    }
    assert!(all.iter().all(|n| *n == all[0]));
}

/// Fills every parameter with numbers that are the same on every device.
struct Waves<'a> {
    parameter: usize,
    device: &'a Device,
}

impl ModuleMapper for Waves<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.parameter += 1;
        let shape = param.dims();
        let number = |i: usize| ((i * 37 + self.parameter * 11) % 23) as f32 / 22.0 - 0.5;
        let data: Vec<f32> = (0..shape.iter().product()).map(number).collect();
        let tensor = Tensor::from_data(TensorData::new(data, shape), self.device);
        Param::from_tensor(tensor.require_grad())
    }
}

/// A weighted sum of imagined deterministic states, with those of the samples where `stoch`, and its gradient of the actions.
fn imagined(device: &Device, actions: &[f32], stoch: bool) -> (f64, Vec<f64>) {
    let device = &device.clone().autodiff();
    let model = small(device).map(&mut Waves {
        parameter: 0,
        device,
    });
    let shape = [2, actions.len() / 4, 2];
    let actions = Tensor::<3>::from_data(TensorData::new(actions.to_vec(), shape), device);
    let actions = actions.require_grad();
    let start = model.initial(2, device, FloatDType::F32);
    let found = model.imagine(actions.clone(), key([1, 2, 3, 4], device), start);
    let states = if stoch { found.features() } else { found.deter };
    let weights: Vec<f32> = (0..states.dims().iter().product())
        .map(|i: usize| ((i * 29) % 17) as f32 / 8.0 - 1.0)
        .collect();
    let weights = Tensor::from_data(TensorData::new(weights, states.dims()), device);
    let loss = (states * weights).sum();
    let gradients = loss.backward();
    let d_actions = actions.grad(&gradients).expect("a gradient");
    (f64::from(loss.into_scalar::<f32>()), numbers(d_actions))
}

#[test]
fn gradients_of_imagination_are_the_same_on_every_device() {
    let actions: Vec<f32> = (0..12).map(|i| (i * 5 % 11) as f32 / 5.0 - 1.0).collect();
    let mut first: Option<Vec<f64>> = None;
    for (name, device) in devices() {
        let (_, found) = imagined(&device, &actions, true);
        // The first action reaches every later state.
        assert!(
            found[..2].iter().all(|x| x.abs() > 1e-4),
            "{name}: {found:?}"
        );
        assert_close(&name, &found, first.get_or_insert(found.clone()), 1e-4);
    }
}

#[test]
fn an_imagined_state_follows_its_action() {
    let Some((_, device)) = devices().into_iter().next() else {
        return;
    };
    let actions = [0.3, -0.2, 0.5, 0.1];
    let (_, found) = imagined(&device, &actions, false);
    const STEP: f32 = 1e-2;
    let slope = |i: usize| {
        let at = |change: f32| {
            let mut actions = actions;
            actions[i] += change;
            imagined(&device, &actions, false).0
        };
        (at(STEP) - at(-STEP)) / f64::from(2.0 * STEP)
    };
    let slopes: Vec<f64> = (0..actions.len()).map(slope).collect();
    assert_close("slopes", &found, &slopes, 1e-3);
}

#[test]
fn classes_come_up_as_often_as_they_should() {
    let device = Device::flex();
    let model = RssmConfig::new(1, 1)
        .with_deter(4)
        .with_hidden(4)
        .with_stoch(1)
        .with_classes(3)
        .with_blocks(1)
        .init(&device);
    let rows = 20_000;
    let state = model.initial(rows, &device, FloatDType::F32);
    let imagined = model.imagine(
        Tensor::zeros([rows, 1, 1], &device),
        key([5; 4], &device),
        state,
    );
    let logits = &numbers(imagined.prior_logits)[..3];
    let all: f64 = logits.iter().map(|x| x.exp()).sum();
    let samples = numbers(imagined.stoch);
    for class in 0..3 {
        let p = 0.99 * logits[class].exp() / all + 0.01 / 3.0;
        let found = samples.iter().skip(class).step_by(3).sum::<f64>() / rows as f64;
        // Five deviations.
        assert!(
            (found - p).abs() < 5.0 * (p * (1.0 - p) / rows as f64).sqrt(),
            "{found} {p}"
        );
    }
}

#[test]
fn nothing_to_do() {
    for (name, device) in devices() {
        for form in FORMS {
            let model = small(&device);
            for (batch, steps) in [(2, 0), (0, 0)] {
                let (tokens, actions) = inputs(batch, steps, &device);
                let key = key([0; 4], &device);
                let sequence = Sequence::new();
                let observed = form.observe(&model, tokens, actions.clone(), key.clone(), sequence);
                assert_eq!(observed.deter.dims(), [batch, steps, 16], "{name}");
                assert_eq!(observed.last.stoch.dims(), [batch, 20]);
                let imagined = model.imagine(actions, key, observed.last);
                assert_eq!(imagined.features().dims(), [batch, steps, 36]);
            }
        }
    }
}

/// Gradients of all inputs and the initial state, without resets; `formulas` has those of the weights, with resets.
#[test]
fn both_forms_have_the_same_gradients() {
    for (name, device) in devices() {
        let device = device.autodiff();
        let model = small(&device);
        let run = |form: Form| {
            let (tokens, actions) = inputs(2, 3, &device);
            let state = RssmState::new(
                Tensor::ones([2, 16], &device) * 0.3,
                Tensor::ones([2, 20], &device) * 0.2,
            );
            let given = [tokens.require_grad(), actions.require_grad()];
            let state = RssmState::new(state.deter.require_grad(), state.stoch.require_grad());
            let observed = form.observe(
                &model,
                given[0].clone(),
                given[1].clone(),
                key([7, 5, 3, 1], &device),
                Sequence::from(Some(state.clone())),
            );
            let wave = (observed.features() * 3.0).sin().sum();
            let loss = wave + observed.kl(&model, 0.0).total();
            let gradients = loss.backward();
            let mut found = vec![numbers(observed.features())];
            found.extend(given.map(|x| numbers(x.grad(&gradients).expect("a gradient"))));
            for x in [state.deter, state.stoch] {
                found.push(numbers(x.grad(&gradients).expect("a gradient")));
            }
            found
        };
        let (steps, sequence) = (run(Form::Steps), run(Form::Sequence));
        for (steps, sequence) in steps.iter().zip(&sequence) {
            assert_close(&name, sequence, steps, 2e-5);
        }
    }
}

#[test]
fn free_nats_are_free() {
    let device = Device::flex();
    let model = small(&device);
    let logits = Tensor::<3>::from_data(TensorData::new(vec![0.5_f32; 40], [1, 2, 20]), &device);
    let kl = model.kl(logits.clone(), logits, 1.0);
    assert!(numbers(kl.divergence).iter().all(|x| x.abs() < 1e-6));
    assert_eq!(numbers(kl.dynamics), [1.0]);
    assert_eq!(numbers(kl.representation), [1.0]);
}

#[test]
fn bf16_is_near_f32() {
    for (name, device) in devices() {
        let format = FloatDType::BF16;
        if !device.supports_dtype(burn::tensor::DType::BF16) {
            println!("skipped: {name} has no bf16");
            continue;
        }
        let model = small(&device);
        let (tokens, actions) = inputs(3, 1, &device);
        let key = key([3; 4], &device);
        let wide = model.observe(
            tokens.clone(),
            actions.clone(),
            key.clone(),
            Sequence::new(),
        );
        struct Cast;
        impl ModuleMapper for Cast {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                Param::from_tensor(param.val().cast(FloatDType::BF16))
            }
        }
        let narrow = model.map(&mut Cast);
        let found = narrow.observe(
            tokens.cast(format),
            actions.cast(format),
            key,
            Sequence::new(),
        );
        assert_eq!(found.deter.dtype(), burn::tensor::DType::BF16);
        // A dozen roundings of 2^-9 each.
        assert_close(&name, &numbers(found.deter), &numbers(wide.deter), 0.05);
        assert_close(
            &name,
            &numbers(found.posterior_logits),
            &numbers(wide.posterior_logits),
            0.05,
        );
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let device = Device::flex();
    assert!(
        RssmConfig::new(3, 2)
            .with_deter(10)
            .with_blocks(4)
            .check()
            .is_err()
    );
    assert!(RssmConfig::new(0, 2).check().is_err());
    assert!(RssmConfig::new(3, 2).with_unimix(1.0).check().is_err());
    let model = small(&device);
    let (tokens, actions) = inputs(2, 3, &device);
    let run = |tokens: Tensor<3>, actions: Tensor<3>, sequence| {
        model
            .checked_observe(tokens, actions, key([0; 4], &device), sequence)
            .is_err()
    };
    assert!(run(
        tokens.clone().narrow(2, 0, 2),
        actions.clone(),
        Sequence::new()
    ));
    assert!(run(
        tokens.clone(),
        actions.clone().narrow(1, 0, 2),
        Sequence::new()
    ));
    assert!(run(
        tokens.clone(),
        actions.clone(),
        Sequence::new().with_lengths(&[1, 2])
    ));
    let state = model.initial(3, &device, FloatDType::F32);
    assert!(run(
        tokens,
        actions.clone(),
        Sequence::new().with_state(state.clone())
    ));
    let narrow = RssmState::new(state.deter.narrow(0, 0, 2), state.stoch);
    assert!(
        model
            .checked_imagine(actions, key([0; 4], &device), narrow)
            .is_err()
    );
}

#[test]
fn the_published_sizes() {
    // By the layers' widths; parameters are made when they are used.
    let device = Device::flex();
    let count = |config: &RssmConfig| {
        let (d, h, s, g) = (
            config.deter,
            config.hidden,
            config.stoch * config.classes,
            8,
        );
        let dense = |from: usize, to: usize| from * to + to;
        let inputs = dense(d, h) + dense(s, h) + dense(config.d_action, h) + 3 * h;
        let core = d * d / g + dense(3 * h, d) + d + d * 3 * d / g + 3 * d;
        let prior = dense(d, h) + dense(h, h) + 2 * h + dense(h, s);
        let posterior = d * h + dense(config.d_tokens, h) + h + dense(h, s);
        inputs + core + prior + posterior
    };
    for config in [
        RssmConfig::size_12m(1024, 6),
        RssmConfig::size_50m(1024, 6),
        RssmConfig::size_200m(1024, 6),
    ] {
        let expected = count(&config);
        assert_eq!(config.init(&device).num_params(), expected, "{config:?}");
    }
}
