//! A lower bound of the memory of a language model's run.

use riverrun::models::AnyLanguageModelConfig;

use crate::{Precision, RunConfig, TaskConfig};

impl RunConfig {
    /// The bytes of the model's weights; more than any machine has for a model that cannot exist.
    pub fn weight_bytes(&self) -> u128 {
        match self.model.try_size() {
            Ok(size) => 4 * u128::from(size.parameters),
            Err(_) => u128::MAX,
        }
    }

    /// The bytes that a training step takes, at least: weights, moments, gradients, and the activations of a batch, or of
    /// a part of one, that the backward pass reads.
    pub fn step_bytes(&self) -> u128 {
        let training = &self.training;
        let wide = |x: usize| x as u128;
        let size = match training.dtype {
            Precision::F32 => 4,
            Precision::F16 | Precision::Bf16 => 2,
        };
        let rows = wide(training.batch) / wide(training.accumulate.max(1));
        let tokens = rows.saturating_mul(self.length());
        // The residual stream at both branches, the MLP's inner features before and after GELU, and the states.
        let features = match &self.model {
            AnyLanguageModelConfig::Recurrent(model) => wide(model.width)
                .saturating_mul(2 + 2 * wide(model.mlp) + wide(model.expansion))
                .saturating_mul(wide(model.layers))
                .saturating_add(wide(model.vocab)),
            model => match model.try_size() {
                Ok(size) => size.saved_per_token.into(),
                Err(_) => u128::MAX,
            },
        };
        let activations = tokens.saturating_mul(features).saturating_mul(size);
        // Weights, two moments, gradients.
        (4 * self.weight_bytes().min(u128::MAX / 8)).saturating_add(activations)
    }

    /// The tokens of a training sequence.
    pub(super) fn length(&self) -> u128 {
        let context = self.training.context as u128;
        match &self.task {
            TaskConfig::SelectiveCopy(task) => context.saturating_add(2 * task.data_tokens as u128),
            TaskConfig::Text(_) => context,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_are_of_the_right_size_and_do_not_overflow() {
        let mut config = RunConfig::selective_copy();
        // 3 layers of about 2·64·256 + 64·256 + 8·64·64: 0.2 million weights.
        assert!((400_000..1_200_000).contains(&config.weight_bytes()));
        for field in 0..6 {
            let mut config = config.clone();
            let AnyLanguageModelConfig::Recurrent(model) = &mut config.model else {
                panic!("the default is a recurrent model");
            };
            *[
                &mut model.width,
                &mut model.layers,
                &mut model.mlp,
                &mut model.expansion,
                &mut config.training.batch,
                &mut config.training.context,
            ][field] = usize::MAX;
            assert!(config.step_bytes() > 1 << 64);
        }
        let before = config.step_bytes();
        config.training.accumulate = 4;
        assert!(config.step_bytes() < before);
    }
}
