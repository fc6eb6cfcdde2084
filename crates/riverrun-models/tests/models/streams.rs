//! A sequence, its chunks and its steps, of both models.

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use riverrun::Sequence;
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
