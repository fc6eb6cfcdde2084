//! World models.

use burn::tensor::Tensor;
use riverrun::nn::RssmConfig;
use riverrun_models::WorldModelConfig;

use crate::common::{devices, numbers};

#[test]
fn a_world_model_of_nothing_has_a_loss_that_is_not_a_number() {
    for (name, device) in devices() {
        let device = &device.autodiff();
        let rssm = RssmConfig::new(3, 2)
            .with_deter(16)
            .with_hidden(12)
            .with_stoch(4)
            .with_classes(5)
            .with_blocks(4);
        let model = WorldModelConfig::new(6, rssm).init(device);
        for [batch, steps] in [[0, 5], [2, 0]] {
            let observations = Tensor::<3>::ones([batch, steps, 6], device);
            let actions = Tensor::<3>::ones([batch, steps, 2], device);
            let key = Tensor::from_ints([1, 2, 3, 4], device);
            let loss = model.loss(observations, actions, key);
            assert!(numbers(loss.total())[0].is_nan(), "{name}");
            let _ = loss.total().backward();
        }
    }
}
