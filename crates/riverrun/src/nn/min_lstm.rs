//! minLSTM.

use burn::config::Config;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

use super::{Recurrent, Sequence, gated};
use crate::Error;
use crate::ops::{Candidate, Gate, SavedStates};

/// Configuration of [`MinLstm`].
#[derive(Config, Debug)]
#[non_exhaustive]
pub struct MinLstmConfig {
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
    /// Whether the gates are normalised to `f' + i' = 1`.
    #[config(default = true)]
    pub normalized: bool,
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

/// minLSTM: `f_t = σ(W_f x_t + b_f)`, `i_t = σ(W_i x_t + b_i)`, `h_t = f'_t ∘ h_{t-1} + i'_t ∘ act(W_h x_t + b_h)`
/// with `f' = f / (f + i)` and `i' = i / (f + i)`, or the plain gates.
///
/// Parameters: `3 d_hidden (d_input + 1)`.
///
/// **Log space.** With [`Candidate::G`] and normalised gates this is the function that the paper's appendix B computes
/// from logarithms, `ln f' = -softplus(d)`, `ln i' = -softplus(-d)`, `d = softplus(-k_f) - softplus(-k_i)`: weights are
/// interchangeable in both directions. The initial state is that of [`MinGru`](super::MinGru) in log space.
///
/// Source: Feng et al., *Were RNNs All We Needed?* (2024), section 3.2 and appendix B.
#[derive(Module, Debug)]
pub struct MinLstm {
    /// `[d_input, 3 d_hidden]`: `W_f`, `W_i`, `W_h` side by side.
    pub projection: Linear,
    /// The candidate's activation.
    #[module(skip)]
    pub candidate: Candidate,
    /// Whether the gates are normalised.
    #[module(skip)]
    pub normalized: bool,
    /// Whether time runs from the last step to the first.
    #[module(skip)]
    pub reverse: bool,
    /// Which states are saved for the backward pass, and which recomputed.
    #[module(skip)]
    pub saved_states: SavedStates,
}

impl MinLstmConfig {
    /// A layer with fresh weights (the initialiser of Burn's `Linear`).
    pub fn init(&self, device: &Device) -> MinLstm {
        let mut projection = LinearConfig::new(self.d_input, 3 * self.d_hidden)
            .with_bias(self.bias)
            .init(device);
        let (hidden, scale) = (self.d_hidden, self.time_scale);
        gated::spread_memory(&mut projection, 1, -1.0, hidden, scale, device);
        MinLstm {
            projection,
            candidate: self.candidate,
            normalized: self.normalized,
            reverse: self.reverse,
            saved_states: self.saved_states,
        }
    }
}

impl MinLstm {
    /// The gate of the scan.
    pub fn gate(&self) -> Gate {
        Gate::MinLstm {
            candidate: self.candidate,
            normalized: self.normalized,
        }
    }
}

impl Recurrent for MinLstm {
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
