//! Griffin: a sequence, its chunks and its steps; gradients; what it is made of; refusals.

use crate::common::{assert_close, devices, numbers};
use burn::module::Module;
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use riverrun::Error;
use riverrun::models::{GriffinBlockState, GriffinConfig, TemporalMixing};
use riverrun::nn::Sequence;

/// The rounding of f32 through three blocks, with a margin of about ten.
const TOLERANCE: f64 = 1e-5;

const STEPS: usize = 21;

fn config() -> GriffinConfig {
    GriffinConfig::new(13, 16, 3, 2).with_window(6)
}

fn tokens(device: &Device) -> Tensor<2, Int> {
    let tokens: Vec<i32> = (0..STEPS as i32).map(|t| t * t % 13).collect();
    Tensor::from_data(TensorData::new(tokens, [1, STEPS]), device)
}

#[test]
fn sequence_chunks_and_steps_agree() {
    for (name, device) in devices() {
        let model = config().init(&device);
        let tokens = tokens(&device);
        let flags: Vec<bool> = (0..STEPS).map(|t| t == 9).collect();
        for marked in [false, true] {
            let cut = |lengths: &[usize]| {
                let (mut state, mut parts, mut at) = (None, Vec::new(), 0);
                for &length in lengths {
                    let mut sequence = Sequence::from(state);
                    if marked {
                        let flags = flags[at..at + length].to_vec();
                        let flags = TensorData::new(flags, [1, length]);
                        let flags = Tensor::<2, Bool>::from_data(flags, &device);
                        sequence = sequence.with_reset(flags);
                    }
                    let chunk = tokens.clone().narrow(1, at, length);
                    let (logits, next) = model.forward(chunk, sequence);
                    parts.push(logits);
                    state = Some(next);
                    at += length;
                }
                numbers(Tensor::cat(parts, 1))
            };
            let whole = cut(&[STEPS]);
            let what = |how: &str| format!("{name} {how}, marked: {marked}");
            // On a GPU every other length has matmuls to choose first.
            if name == "cpu" {
                assert_close(&what("chunks"), &cut(&[1, 8, 2, 10]), &whole, TOLERANCE);
                assert_close(&what("steps"), &cut(&[1; STEPS]), &whole, TOLERANCE);
            } else {
                assert_close(&what("halves"), &cut(&[10, 11]), &whole, TOLERANCE);
            }
        }
    }
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
    let (logits, _) = model.forward(tokens(&device), Sequence::new());
    let bound = numbers(logits.clone())
        .iter()
        .fold(0.0_f64, |m, x| m.max(x.abs()));
    assert!(bound < 30.0);
    let grads = (logits.clone() * logits).sum().backward();
    let alive = |d: Option<Vec<f64>>| {
        let d = d.expect("a gradient");
        assert!(d.iter().all(|d| d.is_finite()) && d.iter().any(|&d| d != 0.0));
    };
    alive(model.embedding.weight.val().grad(&grads).map(numbers));
    for block in &model.blocks {
        for layer in [&block.gate, &block.up, &block.down] {
            alive(layer.weight.val().grad(&grads).map(numbers));
        }
        match &block.temporal {
            TemporalMixing::Recurrence(part) => {
                alive(part.conv_weight.val().grad(&grads).map(numbers));
                alive(part.conv_bias.val().grad(&grads).map(numbers));
                alive(part.rg_lru.lambda.val().grad(&grads).map(numbers));
                for layer in [&part.linear_x, &part.linear_y, &part.linear_out] {
                    alive(layer.weight.val().grad(&grads).map(numbers));
                }
            }
            TemporalMixing::Attention(layer) => {
                alive(layer.attention.qkv.weight.val().grad(&grads).map(numbers));
                alive(layer.attention.out.weight.val().grad(&grads).map(numbers));
            }
        }
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
    let (_, state) = model.forward(tokens(&device), Sequence::new());
    let mut swapped = state.clone();
    swapped.blocks.swap(0, 2);
    let found = model.try_forward(tokens(&device), Sequence::from(Some(swapped)));
    assert!(matches!(found.map(|_| ()), Err(Error::Unsupported(_))));
    let mut short = state;
    short.blocks.pop();
    let found = model.try_forward(tokens(&device), Sequence::from(Some(short)));
    assert!(matches!(found.map(|_| ()), Err(Error::Shape { .. })));
}
