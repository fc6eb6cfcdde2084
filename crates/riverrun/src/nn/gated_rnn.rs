//! A layer on any gate.

use burn::config::Config;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

use super::{Recurrent, Sequence, gated};
use crate::Error;
use crate::ops::{Gate, SavedStates};

/// Configuration of [`GatedRnn`].
#[derive(Config, Debug)]
#[non_exhaustive]
pub struct GatedRnnConfig {
    /// Features of the input.
    pub d_input: usize,
    /// Features of the state and output.
    pub d_hidden: usize,
    /// The gate.
    pub gate: Gate,
    /// Whether the projection has a bias.
    #[config(default = true)]
    pub bias: bool,
    /// Whether time runs from the last step to the first.
    #[config(default = false)]
    pub reverse: bool,
    /// Which states are saved for the backward pass, and which recomputed.
    #[config(default = "SavedStates::All")]
    pub saved_states: SavedStates,
}

/// A linear recurrence with any [`Gate`]: one projection to the gate's `G` inputs, then the scan.
///
/// [`MinGru`](super::MinGru), [`MinLstm`](super::MinLstm) and [`LinearRnn`](super::LinearRnn) are the layers on their gates
/// that also initialise what the channels remember; RG-LRU's layer has another projection.
#[derive(Module, Debug)]
pub struct GatedRnn {
    /// `[d_input, G d_hidden]`: the gate's inputs side by side.
    pub projection: Linear,
    /// The gate.
    #[module(skip)]
    pub gate: Gate,
    /// Whether time runs from the last step to the first.
    #[module(skip)]
    pub reverse: bool,
    /// Which states are saved for the backward pass, and which recomputed.
    #[module(skip)]
    pub saved_states: SavedStates,
}

impl GatedRnnConfig {
    /// A layer with fresh weights (the initialiser of Burn's `Linear`).
    pub fn init(&self, device: &Device) -> GatedRnn {
        GatedRnn {
            projection: LinearConfig::new(self.d_input, self.gate.inputs() * self.d_hidden)
                .with_bias(self.bias)
                .init(device),
            gate: self.gate,
            reverse: self.reverse,
            saved_states: self.saved_states,
        }
    }
}

impl Recurrent for GatedRnn {
    type State = Tensor<2>;

    crate::run_checked!();

    fn checked_run(
        &self,
        x: Tensor<3>,
        sequence: Sequence<Tensor<2>>,
    ) -> Result<(Tensor<3>, Tensor<2>), Error> {
        let options = (self.reverse, self.saved_states);
        gated::run(&self.projection, self.gate, options, x, sequence)
    }
}
