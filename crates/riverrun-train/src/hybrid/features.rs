//! The training state as 64 features.

use std::collections::VecDeque;

use riverrun_kernels::encoder::{self, Config, StateEncoder};
use serde::{Deserialize, Serialize};

use super::Phase;

/// Steps that the features are made from: the encoder's longest ring.
const KEPT: usize = 256;

/// The last real steps. Features are a function of these alone, not of what came before, so that a run that is resumed
/// finds the same.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Features {
    kept: VecDeque<Step>,
}

/// A real step. Numbers that are not finite are kept out of checkpoints by the encoder's own rule: they count as 0.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Step {
    pub step: u64,
    pub loss: f32,
    pub gradient: f32,
    pub lr: f32,
    pub phase: Phase,
    pub steps_in_phase: u32,
    /// Predictions in a row.
    pub in_a_row: u32,
    /// The relative error of the last predicted loss.
    pub error: f32,
    /// Mean and deviation of the optimizer's first moments, and of its second, at the end of the window.
    #[serde(default)]
    pub moments: [f32; 4],
}

impl Features {
    pub fn push(&mut self, step: Step) {
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        let finite = |x: f32| if x.is_finite() { x } else { 0.0 };
        self.kept.push_back(Step {
            loss: finite(step.loss),
            gradient: finite(step.gradient),
            error: finite(step.error),
            moments: step.moments.map(finite),
            ..step
        });
    }

    pub fn encode(&self) -> Vec<f32> {
        let mut encoder = StateEncoder::new(Config::default()).expect("the default is valid");
        for step in &self.kept {
            let phase = match step.phase {
                Phase::WarmUp => encoder::Phase::WarmUp,
                Phase::Full => encoder::Phase::Full,
                Phase::Predict => encoder::Phase::Predict,
                Phase::Correct => encoder::Phase::Correct,
            };
            let seen = encoder::Observation::new(step.step, step.loss, step.gradient, step.lr);
            let [mean, deviation, second, second_deviation] = step.moments;
            let seen = seen.with_moments([mean, deviation], [second, second_deviation]);
            let seen = seen.with_phase(phase, step.steps_in_phase);
            encoder.push(&seen.with_prediction(step.in_a_row, step.error));
        }
        encoder.encode().to_vec()
    }
}
