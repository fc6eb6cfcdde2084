//! The dynamics of a pendulum, by a world model.

use burn::tensor::{Device, Tensor, TensorData};
use riverrun_models::{WorldModel, WorldModelConfig};

use super::{Inputs, Objective};
use crate::tasks::{OBSERVED, PendulumBatch};

/// A [`WorldModel`] that learns the sequences of a [`Pendulum`](crate::tasks::Pendulum).
#[derive(Debug, Clone)]
pub struct Dynamics {
    model: WorldModelConfig,
    /// Steps of a batch.
    steps: u128,
}

impl Dynamics {
    /// An objective with a model of these sizes.
    pub fn new(model: WorldModelConfig) -> Self {
        Self { model, steps: 0 }
    }

    /// With batches of this many sequences of so many steps, for [`bytes`](Objective::bytes).
    pub fn with_batches(mut self, sequences: usize, steps: usize) -> Self {
        self.steps = (sequences as u128).saturating_mul(steps as u128);
        self
    }
}

impl Objective for Dynamics {
    type Model = WorldModel;
    type Batch = PendulumBatch;

    fn init(&self, device: &Device) -> WorldModel {
        self.model.init(device)
    }

    fn tensors(&self, batch: &PendulumBatch) -> Vec<TensorData> {
        let shape = |width| [batch.rows, batch.length, width];
        vec![
            TensorData::new(batch.observations.clone(), shape(OBSERVED)),
            TensorData::new(batch.actions.clone(), shape(1)),
        ]
    }

    fn loss(&self, model: &WorldModel, inputs: &Inputs) -> Tensor<1> {
        model
            .loss(inputs.float(0), inputs.float(1), inputs.key())
            .total()
    }

    fn scored(&self, batch: &PendulumBatch) -> usize {
        batch.rows * batch.length
    }

    fn draws(&self) -> bool {
        false
    }

    fn bytes(&self) -> Option<u128> {
        let rssm = &self.model.rssm;
        // Weights, gradients and two moments; of each step the observation, both states and both sets of logits.
        let weights = self.model.parameters().saturating_mul(16);
        let logits = (rssm.stoch as u128).saturating_mul(rssm.classes as u128);
        let step = logits.saturating_mul(3).saturating_add(rssm.deter as u128);
        let step = step.saturating_add((rssm.hidden + rssm.d_tokens + OBSERVED) as u128);
        let steps = step.saturating_mul(4).saturating_mul(self.steps);
        Some(weights.saturating_add(steps))
    }
}
