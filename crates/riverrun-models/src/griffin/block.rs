//! The blocks of Griffin.

use burn::module::{Module, Param};
use burn::nn::Linear;
use burn::tensor::Tensor;
use riverrun::internal::{apply, beside, fits};
use riverrun::nn::{AttentionState, LocalAttention, Recurrent, RgLru, RmsNorm};
use riverrun::ops::{geglu, short_convolution};
use riverrun::{Error, Sequence};

/// The recurrent block: `W_out (gelu(W_y x) ∘ RG-LRU(conv(W_x x)))`.
#[derive(Module, Debug)]
pub struct GriffinRecurrence {
    /// `[width, d_rnn]`: the branch of the recurrence.
    pub linear_x: Linear,
    /// `[width, d_rnn]`: the branch of the gate.
    pub linear_y: Linear,
    /// `[d_rnn, width]`.
    pub linear_out: Linear,
    /// `[4, d_rnn]`, the step's own weight last.
    pub conv_weight: Param<Tensor<2>>,
    /// `[d_rnn]`.
    pub conv_bias: Param<Tensor<1>>,
    /// The recurrence.
    pub rg_lru: RgLru,
}

/// The temporal mixing of a block.
#[derive(Module, Debug)]
pub enum TemporalMixing {
    /// The recurrent block.
    Recurrence(GriffinRecurrence),
    /// Local attention.
    Attention(LocalAttention),
}

/// `x + mixing(norm(x))`, then `x + W_down (gelu(W_gate n) ∘ W_up n)` with `n = norm(x)`.
#[derive(Module, Debug)]
pub struct GriffinBlock {
    /// Before the mixing.
    pub temporal_norm: RmsNorm,
    /// Recurrence or attention.
    pub temporal: TemporalMixing,
    /// Before the MLP.
    pub channel_norm: RmsNorm,
    /// `[width, mlp width]`.
    pub gate: Linear,
    /// `[width, mlp width]`.
    pub up: Linear,
    /// `[mlp width, width]`.
    pub down: Linear,
}

/// The state of a [`GriffinBlock`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum GriffinBlockState {
    /// State of a recurrent block.
    Recurrence {
        /// `[B, 3, d_rnn]`: the inputs that the convolution still sees.
        inputs: Tensor<3>,
        /// `[B, d_rnn]`: the state of the RG-LRU.
        h: Tensor<2>,
    },
    /// State of a local attention block: at most `window - 1` keys and values.
    Attention(AttentionState),
}

impl GriffinBlockState {
    /// The same values, cut off from the graph that made them.
    pub fn detach(self) -> Self {
        match self {
            Self::Recurrence { inputs, h } => Self::Recurrence {
                inputs: inputs.detach(),
                h: h.detach(),
            },
            Self::Attention(state) => Self::Attention(state.detach()),
        }
    }
}

/// The sequence with the state of one kind of block.
fn of_kind<S>(
    sequence: Sequence<GriffinBlockState>,
    kind: fn(GriffinBlockState) -> Option<S>,
) -> Result<Sequence<S>, Error> {
    crate::forward::of_kind(
        sequence,
        kind,
        "the state of a Griffin block of the other kind",
    )
}

impl GriffinRecurrence {
    fn run(
        &self,
        x: Tensor<3>,
        sequence: Sequence<(Tensor<3>, Tensor<2>)>,
    ) -> Result<(Tensor<3>, GriffinBlockState), Error> {
        let (inputs, h) = sequence.state.clone().unzip();
        let start = sequence.starting_from(inputs);
        let (weight, bias) = (self.conv_weight.val(), self.conv_bias.val());
        let [branch, gate] = beside([&self.linear_x, &self.linear_y], x)?;
        let (branch, inputs) = short_convolution(branch, weight, Some(bias), start)?;
        let (branch, h) = self.rg_lru.checked_run(branch, sequence.starting_from(h))?;
        let y = apply(&self.linear_out, geglu(gate, branch)?)?;
        Ok((y, GriffinBlockState::Recurrence { inputs, h }))
    }
}

impl GriffinBlock {
    /// The block on `x + branch`, without its own last addition: returns the two terms, which the next norm adds in its own pass
    /// over memory.
    pub(super) fn run_open(
        &self,
        x: Tensor<3>,
        branch: Option<Tensor<3>>,
        sequence: Sequence<GriffinBlockState>,
    ) -> Result<(Tensor<3>, Tensor<3>, GriffinBlockState), Error> {
        let (normed, x) = match branch {
            Some(branch) => self.temporal_norm.forward_sum(x, branch),
            None => (self.temporal_norm.forward(x.clone()), x),
        };
        let (y, state) = match &self.temporal {
            TemporalMixing::Recurrence(recurrence) => {
                let start = of_kind(sequence, |state| match state {
                    GriffinBlockState::Recurrence { inputs, h } => Some((inputs, h)),
                    GriffinBlockState::Attention(_) => None,
                })?;
                recurrence.run(normed, start)?
            }
            TemporalMixing::Attention(attention) => {
                let start = of_kind(sequence, |state| match state {
                    GriffinBlockState::Attention(state) => Some(state),
                    GriffinBlockState::Recurrence { .. } => None,
                })?;
                let (y, state) = attention.checked_run(normed, start)?;
                (y, GriffinBlockState::Attention(state))
            }
        };
        let (normed, x) = self.channel_norm.forward_sum(x, y);
        let [gate, up] = beside([&self.gate, &self.up], normed)?;
        Ok((x, apply(&self.down, geglu(gate, up)?)?, state))
    }
}

impl Recurrent for GriffinBlock {
    type State = GriffinBlockState;

    riverrun::run_checked!();

    fn checked_run(
        &self,
        x: Tensor<3>,
        sequence: Sequence<GriffinBlockState>,
    ) -> Result<(Tensor<3>, GriffinBlockState), Error> {
        let ([batch, steps, _], gamma) = (x.dims(), self.temporal_norm.gamma.val());
        fits("x", &gamma, &x, &[batch, steps, gamma.dims()[0]])?;
        let (x, branch, state) = self.run_open(x, None, sequence)?;
        Ok((x + branch, state))
    }
}
