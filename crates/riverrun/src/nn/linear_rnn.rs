//! The gated linear RNN.

use burn::config::Config;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

use super::{Recurrent, Sequence, gated};
use crate::Error;
use crate::ops::{Gate, SavedStates};

/// Configuration of [`LinearRnn`].
#[derive(Config, Debug)]
#[non_exhaustive]
pub struct LinearRnnConfig {
    /// Features of the input.
    pub d_input: usize,
    /// Features of the state and output.
    pub d_hidden: usize,
    /// The channels start out remembering from 1 to this many steps.
    #[config(default = 64)]
    pub time_scale: usize,
    /// Whether time runs from the last step to the first.
    #[config(default = false)]
    pub reverse: bool,
    /// Which states are saved for the backward pass, and which recomputed.
    #[config(default = "SavedStates::All")]
    pub saved_states: SavedStates,
}

/// The gated linear RNN: `h_t = σ(W_a x_t + b_a) ∘ h_{t-1} + W_b x_t + b_b`.
///
/// Unlike in minGRU, the input is not scaled by one minus the gate, so a channel whose gate is near 1 sums its inputs.
///
/// Source: Martin & Cundy, *Parallelizing Linear Recurrent Neural Nets Over Sequence Length* (2018), section 2.2.
#[derive(Module, Debug)]
pub struct LinearRnn {
    /// `[d_input, 2 d_hidden]`: `W_a` beside `W_b`.
    pub projection: Linear,
    /// Whether time runs from the last step to the first.
    #[module(skip)]
    pub reverse: bool,
    /// Which states are saved for the backward pass, and which recomputed.
    #[module(skip)]
    pub saved_states: SavedStates,
}

impl LinearRnnConfig {
    /// A layer with fresh weights.
    pub fn init(&self, device: &Device) -> LinearRnn {
        let (hidden, scale) = (self.d_hidden, self.time_scale);
        let mut projection = LinearConfig::new(self.d_input, 2 * hidden).init(device);
        gated::spread_memory(&mut projection, 0, 1.0, hidden, scale, device);
        LinearRnn {
            projection,
            reverse: self.reverse,
            saved_states: self.saved_states,
        }
    }
}

impl LinearRnn {
    /// The gate of the scan.
    pub fn gate(&self) -> Gate {
        Gate::Sigmoid
    }
}

impl Recurrent for LinearRnn {
    type State = Tensor<2>;

    crate::run_checked!();

    fn checked_run(
        &self,
        x: Tensor<3>,
        sequence: Sequence<Tensor<2>>,
    ) -> Result<(Tensor<3>, Tensor<2>), Error> {
        gated::run(
            &self.projection,
            self.gate(),
            (self.reverse, self.saved_states),
            x,
            sequence,
        )
    }
}
