//! A sequence, its chunks and its steps, of both models.

use burn::tensor::{Bool, DType, Device, Int, Tensor, TensorData};
use riverrun::Sequence;
use riverrun::training::Places;
use riverrun_models::AnyLanguageModelConfig;

use crate::common::{assert_close, devices, numbers};
use crate::{gpt2, griffin};

/// The rounding of f32 through up to three blocks, with a margin of about ten.
pub const TOLERANCE: f64 = 1e-5;

pub const STEPS: usize = 21;

/// `[1, steps]`.
pub fn tokens(steps: usize, device: &Device) -> Tensor<2, Int> {
    let tokens: Vec<i32> = (0..steps as i32).map(|t| t * t % 13).collect();
    Tensor::from_data(TensorData::new(tokens, [1, steps]), device)
}

#[test]
fn sequence_chunks_and_steps_agree() {
    for (name, device) in devices() {
        agree(&name, &device, griffin::config().into());
        agree(&name, &device, gpt2::config().into());
    }
}

fn agree(name: &str, device: &Device, config: AnyLanguageModelConfig) {
    let model = config.init(device);
    let tokens = tokens(STEPS, device);
    let flags: Vec<bool> = (0..STEPS).map(|t| t == 9).collect();
    for marked in [false, true] {
        let cut = |lengths: &[usize]| {
            let (mut state, mut parts, mut at) = (None, Vec::new(), 0);
            for &length in lengths {
                let mut sequence = Sequence::from(state);
                if marked {
                    let flags = TensorData::new(flags[at..at + length].to_vec(), [1, length]);
                    let flags = Tensor::<2, Bool>::from_data(flags, device);
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
        let what = |how: &str| format!("{} on {name}, {how}, marked: {marked}", config.kind());
        // On a GPU every other length has matmuls to choose first.
        if name == "cpu" {
            assert_close(&what("chunks"), &cut(&[1, 8, 2, 10]), &whole, TOLERANCE);
            assert_close(&what("steps"), &cut(&[1; STEPS]), &whole, TOLERANCE);
        } else {
            assert_close(&what("halves"), &cut(&[10, 11]), &whole, TOLERANCE);
        }
    }
}

/// On a GPU, steps whose keys and values are in rings, as recorded ones are.
#[test]
fn steps_over_rings_are_those_of_the_sequence() {
    for (name, device) in devices().into_iter().filter(|(name, _)| name != "cpu") {
        for config in [griffin::config().into(), gpt2::config().into()] {
            over_rings(&name, &device, config);
        }
    }
}

fn over_rings(name: &str, device: &Device, config: AnyLanguageModelConfig) {
    const PROMPT: usize = 10;
    let model = config.init(device);
    let tokens = tokens(STEPS, device);
    let whole = numbers(model.forward(tokens.clone(), Sequence::new()).0);
    let prompt = tokens.clone().narrow(1, 0, PROMPT);
    let (logits, mut state) = model.forward(prompt, Sequence::new());
    let mut parts = vec![logits];
    let layers = model.attentions();
    let places = Places::new(layers[0].rotary, STEPS, device, DType::F32);
    let rooms = layers
        .iter()
        .map(|layer| layer.options.window.unwrap_or(STEPS));
    for (cache, room) in state.caches().into_iter().zip(rooms) {
        *cache = cache.clone().into_ring(room.min(STEPS));
    }
    for at in PROMPT..STEPS {
        let position = Tensor::<1, Int>::from_data(TensorData::new(vec![at as i32], [1]), device);
        let place = places.at(position);
        for cache in state.caches() {
            cache.place = Some(place.clone());
        }
        let token = tokens.clone().narrow(1, at, 1).squeeze_dim(1);
        let (logits, next) = model.step(token, Some(state));
        parts.push(logits.unsqueeze_dim(1));
        state = next;
    }
    let what = format!("{} on {name}, over rings", config.kind());
    assert_close(&what, &numbers(Tensor::cat(parts, 1)), &whole, TOLERANCE);
}
