//! Griffin: its state; gradients; what it is made of; refusals.

use burn::module::Module;
use burn::tensor::{Int, Tensor};
use riverrun::{Error, Sequence};
use riverrun_models::{GriffinBlockState, GriffinConfig};

use crate::common::{devices, numbers};
use crate::parameters::parameters;
use crate::streams::{STEPS, tokens};

pub fn config() -> GriffinConfig {
    GriffinConfig::new(13, 16, 3, 2).with_window(6)
}

#[test]
fn a_state_has_constant_size_and_goes_to_the_next_step() {
    let Some((_, device)) = devices().into_iter().next() else {
        return;
    };
    let model = config().init(&device);
    let mut state = None;
    for t in 0..9 {
        let token = Tensor::<1, Int>::from_data([t], &device);
        let (logits, next) = model.step(token, state);
        assert_eq!(logits.dims(), [1, 13]);
        match &next.blocks[..] {
            [
                GriffinBlockState::Recurrence { inputs, h },
                _,
                GriffinBlockState::Attention(cache),
            ] => {
                assert_eq!((inputs.dims(), h.dims()), ([1, 3, 16], [1, 16]));
                assert_eq!(cache.keys.dims()[1], 5.min(t as usize + 1));
            }
            other => panic!("{other:?}"),
        }
        state = Some(next.detach());
    }
}

#[test]
fn every_third_block_has_attention_and_every_parameter_a_gradient() {
    let Some((_, device)) = devices().into_iter().next() else {
        return;
    };
    let device = device.autodiff();
    let model = config().init(&device);
    let (width, vocab) = (16, 13);
    // Two norms, and a gated MLP of three times the width.
    let block = 2 * width + 2 * (width + 1) * 3 * width + (3 * width + 1) * width;
    let linear = (width + 1) * width;
    // The gates have a block for each of the two heads.
    let gates = 2 * (width / 2 + 1) * width;
    let recurrence = 3 * linear + 5 * width + gates + width;
    // Two heads of queries and one of keys and values, of half the width each.
    let attention = width * 2 * width + linear;
    let expected = 3 * block + 2 * recurrence + attention + vocab * width + width;
    assert_eq!(model.num_params(), expected);
    let (logits, _) = model.forward(tokens(STEPS, &device), Sequence::new());
    let bound = numbers(logits.clone())
        .iter()
        .fold(0.0_f64, |m, x| m.max(x.abs()));
    assert!(bound < 30.0);
    let grads = (logits.clone() * logits).sum().backward();
    for (name, d) in parameters(&model, Some(&grads)) {
        let alive = d.iter().all(|d| d.is_finite()) && d.iter().any(|&d| d != 0.0);
        assert!(alive, "{name}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let Some((_, device)) = devices().into_iter().next() else {
        return;
    };
    let field = |config: GriffinConfig, field: &str| match config.check() {
        Err(Error::Invalid(reason)) => assert!(reason.starts_with(field), "{reason}"),
        other => panic!("{other:?}"),
    };
    field(GriffinConfig::new(0, 16, 3, 2), "vocab");
    field(GriffinConfig::new(13, 16, 3, 3), "heads");
    field(config().with_window(0), "window");
    field(config().with_logit_cap(Some(0.0)), "logit_cap");
    let model = config().init(&device);
    let (_, state) = model.forward(tokens(STEPS, &device), Sequence::new());
    let mut swapped = state.clone();
    swapped.blocks.swap(0, 2);
    let found = model.try_forward(tokens(STEPS, &device), Sequence::from(Some(swapped)));
    assert!(matches!(found.map(|_| ()), Err(Error::Unsupported(_))));
    let mut short = state;
    short.blocks.pop();
    let found = model.try_forward(tokens(STEPS, &device), Sequence::from(Some(short)));
    assert!(matches!(found.map(|_| ()), Err(Error::Shape { .. })));
}
