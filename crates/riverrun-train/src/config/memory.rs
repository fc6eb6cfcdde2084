//! A lower bound of the memory of a language model's run.

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
        let (training, model) = (&self.training, &self.model);
        let wide = |x: usize| x as u128;
        let size = match training.dtype {
            Precision::F32 => 4,
            Precision::F16 | Precision::Bf16 => 2,
        };
        let length = match &self.task {
            TaskConfig::SelectiveCopy(task) => {
                wide(training.context).saturating_add(2 * wide(task.data_tokens))
            }
            TaskConfig::Text(_) => wide(training.context),
        };
        let rows = wide(training.batch) / wide(training.accumulate.max(1));
        let tokens = rows.saturating_mul(length);
        // The residual stream at both branches, the MLP's inner features before and after GELU, and the states.
        let features = wide(model.width)
            .saturating_mul(2 + 2 * wide(model.mlp) + wide(model.expansion))
            .saturating_mul(wide(model.layers))
            .saturating_add(wide(model.vocab));
        let activations = tokens.saturating_mul(features).saturating_mul(size);
        // Weights, two moments, gradients.
        (4 * self.weight_bytes().min(u128::MAX / 8)).saturating_add(activations)
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
            *[
                &mut config.model.width,
                &mut config.model.layers,
                &mut config.model.mlp,
                &mut config.model.expansion,
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
