//! minGRU.

use burn::config::Config;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

use super::{Recurrent, Sequence, gated};
use crate::Error;
use crate::ops::{Candidate, Gate, SavedStates};

/// Configuration of [`MinGru`].
#[derive(Config, Debug)]
#[non_exhaustive]
pub struct MinGruConfig {
    /// Features of the input.
    pub d_input: usize,
    /// Features of the state and output.
    pub d_hidden: usize,
    /// Whether the projection has a bias.
    #[config(default = true)]
    pub bias: bool,
    /// The candidate's activation.
    #[config(default = "Candidate::Identity")]
    pub candidate: Candidate,
    /// At initialisation the channels remember from 1 to this many steps; 1 leaves the biases as drawn.
    #[config(default = 1)]
    pub time_scale: usize,
    /// Whether time runs from the last step to the first.
    #[config(default = false)]
    pub reverse: bool,
    /// Which states are saved for the backward pass, and which recomputed.
    #[config(default = "SavedStates::All")]
    pub saved_states: SavedStates,
}

/// minGRU: `z_t = σ(W_z x_t + b_z)`, `h_t = (1 - z_t) ∘ h_{t-1} + z_t ∘ act(W_h x_t + b_h)`.
///
/// All gates come from the input alone, so training is one projection and one scan over time. Parameters:
/// `2 d_hidden (d_input + 1)`. The candidate has no `tanh` unless asked for, as in the paper.
///
/// **Log space.** With [`Candidate::G`] this is the function that the paper's appendix B computes from logarithms, `ln h_t =
/// A_t + logsumexp(ln h_0, {ln b_j - A_j})` with `A_t = Σ ln(1 - z_j)`: the weights are interchangeable. Only intermediate
/// values differ: this form has no logarithms and no growing sums, so a state of 0 is allowed and long sequences lose no
/// precision. Two differences: appendix B passes the initial state of a sequence through `g`, so its `h_0` is `g(h_0)` here, in
/// the first chunk only; and without an initial state a sequence starts from 0 here.
///
/// Source: Feng et al., *Were RNNs All We Needed?* (2024), section 3.1 and appendix B.
#[derive(Module, Debug)]
pub struct MinGru {
    /// `[d_input, 2 d_hidden]`: `W_z` beside `W_h`.
    pub projection: Linear,
    /// The candidate's activation.
    #[module(skip)]
    pub candidate: Candidate,
    /// Whether time runs from the last step to the first.
    #[module(skip)]
    pub reverse: bool,
    /// Which states are saved for the backward pass, and which recomputed.
    #[module(skip)]
    pub saved_states: SavedStates,
}

impl MinGruConfig {
    /// A layer with fresh weights (the initialiser of Burn's `Linear`).
    pub fn init(&self, device: &Device) -> MinGru {
        let mut projection = LinearConfig::new(self.d_input, 2 * self.d_hidden)
            .with_bias(self.bias)
            .init(device);
        let (hidden, scale) = (self.d_hidden, self.time_scale);
        gated::spread_memory(&mut projection, 0, -1.0, hidden, scale, device);
        MinGru {
            projection,
            candidate: self.candidate,
            reverse: self.reverse,
            saved_states: self.saved_states,
        }
    }
}

impl MinGru {
    /// The gate of the scan.
    pub fn gate(&self) -> Gate {
        Gate::MinGru {
            candidate: self.candidate,
        }
    }
}

impl Recurrent for MinGru {
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
