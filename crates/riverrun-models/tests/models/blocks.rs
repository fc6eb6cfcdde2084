//! Blocks of models: padded steps and refusals.

use burn::tensor::{FloatDType, Int, Tensor, TensorData};
use riverrun::nn::Recurrent;
use riverrun::{Error, Sequence};
use riverrun_models::{BlockConfig, GriffinConfig, LanguageModelConfig, RecurrentKind};

use crate::common::devices;
use crate::padded::{D, LENGTHS, T, check, gradients};

#[test]
fn a_block_does_not_read_the_padding() {
    for (name, device) in devices() {
        let device = &device.autodiff();
        for cell in [RecurrentKind::MinGru, RecurrentKind::Gru] {
            let layer = BlockConfig::new(D, cell).with_expansion(2).init(device);
            check(&format!("{name} block"), &layer, device);
        }
    }
}

#[test]
fn a_language_model_takes_any_token_for_padding() {
    for (name, device) in devices() {
        let device = &device.autodiff();
        let model = LanguageModelConfig::new(7, 8, 2).init(device);
        let run = |with: i32| {
            let token = |i: usize| match i % T < LENGTHS[i / T] {
                true => (i % 7) as i32,
                false => with,
            };
            let tokens: Vec<i32> = (0..LENGTHS.len() * T).map(token).collect();
            let tokens = TensorData::new(tokens, [LENGTHS.len(), T]);
            let tokens = Tensor::<2, Int>::from_data(tokens, device);
            let (logits, _) = model.forward(tokens, Sequence::new().with_lengths(&LENGTHS));
            gradients(&model, logits.narrow(0, 1, 1).narrow(1, 0, 2).sum()).1
        };
        assert_eq!(run(-1), run(0), "{name}");
    }
}

#[test]
fn a_block_refuses_what_does_not_go_with_its_weights() {
    for (name, device) in devices() {
        let block = BlockConfig::new(4, RecurrentKind::MinGru).init(&device);
        let griffin = GriffinConfig::new(5, 4, 3, 2).init(&device);
        let run = |x: &Tensor<3>| {
            let of_griffin = griffin.blocks.iter();
            let of_griffin =
                of_griffin.map(|block| block.checked_run(x.clone(), Sequence::new()).map(drop));
            let mut all: Vec<Result<(), Error>> = of_griffin.collect();
            all.push(block.checked_run(x.clone(), Sequence::new()).map(drop));
            all
        };
        for refused in run(&Tensor::zeros([2, 3, 5], &device)) {
            assert!(
                matches!(refused, Err(Error::Shape { what: "x", .. })),
                "{name} {refused:?}"
            );
        }
        if device.supports_dtype(FloatDType::F16) {
            for refused in run(&Tensor::<3>::zeros([2, 3, 4], &device).cast(FloatDType::F16)) {
                assert!(
                    matches!(refused, Err(Error::Dtype { what: "x", .. })),
                    "{name} {refused:?}"
                );
            }
        }
    }
}
