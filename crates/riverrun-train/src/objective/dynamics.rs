//! The dynamics of a pendulum, by a world model.

use burn::tensor::{Device, Tensor, TensorData};
use riverrun::models::{WorldModel, WorldModelConfig};

use super::{Inputs, Objective};
use crate::tasks::{OBSERVED, PendulumBatch};

/// A [`WorldModel`] that learns the sequences of a [`Pendulum`](crate::tasks::Pendulum).
#[derive(Debug, Clone)]
pub struct Dynamics {
    model: WorldModelConfig,
}

impl Dynamics {
    /// An objective with a model of these sizes.
    pub fn new(model: WorldModelConfig) -> Self {
        Self { model }
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
}
