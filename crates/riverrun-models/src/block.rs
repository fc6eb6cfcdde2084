//! The residual block.

use burn::config::Config;
use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor};
use riverrun::internal::{fits, without_padding};
use riverrun::nn::{
    MultiHeadAttention, MultiHeadAttentionConfig, Recurrent, RmsNorm, RmsNormConfig, Rotary,
    linear, mlp,
};
use riverrun::ops::{SavedStates, dropout};
use riverrun::{Error, Sequence};

use super::{AnyRecurrent, HeadSizes, RecurrentKind, RecurrentState};

/// Configuration of [`Block`].
#[derive(Config, Debug)]
#[non_exhaustive]
pub struct BlockConfig {
    /// Features of the residual stream.
    pub width: usize,
    /// The recurrent layer.
    pub cell: RecurrentKind,
    /// The recurrent state is this many times the width; more than 1 adds a projection back.
    #[config(default = 1)]
    pub expansion: usize,
    /// At initialisation the recurrent channels remember from 1 to this many steps; 1 for the layer's own default.
    #[config(default = 1)]
    pub time_scale: usize,
    /// The MLP's inner features are this many times the width.
    #[config(default = 4)]
    pub mlp: usize,
    /// Probability of dropping an element of each branch while training.
    #[config(default = 0.0)]
    pub dropout: f64,
    /// Whether the recurrent layer's projection has a bias.
    #[config(default = true)]
    pub bias: bool,
    /// Heads of a layer with heads and of attention; as [`HeadSizes`] chooses when absent.
    pub heads: Option<usize>,
    /// Whether the block has causal attention with rotary positions in place of the recurrent layer.
    #[config(default = false)]
    pub attention: bool,
    /// Steps that the attention sees; all when absent.
    pub window: Option<usize>,
}

/// `x + cell(norm(x))`, then `x + mlp(norm(x))`; the MLP is two linear layers with GELU between.
#[derive(Module, Debug)]
pub struct Block {
    /// The norm before the recurrent layer.
    pub norm_cell: RmsNorm,
    /// The recurrent layer, or attention.
    pub cell: AnyRecurrent,
    /// The projection from an expanded state back to the width.
    pub out: Option<Linear>,
    /// The norm before the MLP.
    pub norm_mlp: RmsNorm,
    /// The first layer of the MLP, from the width to the inner features.
    pub up: Linear,
    /// The second layer of the MLP, from the inner features to the width.
    pub down: Linear,
    /// Dropout on both branches.
    pub dropout: Dropout,
}

impl BlockConfig {
    /// The heads of a layer with heads, or of the attention.
    pub(super) fn head_sizes(&self) -> HeadSizes {
        let expansion = match self.cell {
            RecurrentKind::Heads(kind) if kind.widens() && !self.attention => self.expansion,
            _ => 1,
        };
        HeadSizes::new(self.width, self.heads, expansion)
    }

    /// Whether the output of the recurrent layer is projected back to the width.
    pub(super) fn projects(&self) -> bool {
        let own = self.attention || matches!(self.cell, RecurrentKind::Heads(_));
        self.expansion != 1 && !own
    }

    /// Causal attention: rotary positions on all channels of a head, no biases.
    fn attention(&self, device: &Device) -> MultiHeadAttention {
        let HeadSizes { heads, key, .. } = self.head_sizes();
        MultiHeadAttentionConfig::new(self.width, heads)
            .with_window(self.window)
            .with_rotary(Some(Rotary::new(key - key % 2)))
            .with_bias(false)
            .with_out_bias(false)
            .init(device)
    }

    /// A block with fresh weights.
    pub fn init(&self, device: &Device) -> Block {
        let (width, hidden) = (self.width, self.width * self.expansion);
        let norm = || RmsNormConfig::new(width).init(device);
        Block {
            norm_cell: norm(),
            cell: match self.cell {
                _ if self.attention => AnyRecurrent::Attention(self.attention(device)),
                RecurrentKind::Heads(kind) => {
                    AnyRecurrent::Heads(kind.init(self.head_sizes(), device))
                }
                cell => cell.init(width, hidden, self.bias, self.time_scale, device),
            },
            out: self.projects().then(|| {
                LinearConfig::new(hidden, width)
                    .with_bias(false)
                    .init(device)
            }),
            norm_mlp: norm(),
            up: LinearConfig::new(width, self.mlp * width).init(device),
            down: LinearConfig::new(self.mlp * width, width).init(device),
            dropout: DropoutConfig::new(self.dropout).init(),
        }
    }
}

impl Block {
    /// Sets which states of the recurrent layer are saved for the backward pass.
    pub fn with_saved_states(mut self, saved_states: SavedStates) -> Self {
        self.cell = self.cell.with_saved_states(saved_states);
        self
    }

    /// Dropout of one of a block's two branches.
    fn dropped(
        &self,
        y: Tensor<3>,
        draw: &Option<(Tensor<1, Int>, u32)>,
        branch: u32,
    ) -> Tensor<3> {
        match draw {
            _ if y.dims().contains(&0) => y,
            Some((key, block)) => dropout(y, self.dropout.prob, key.clone(), 2 * block + branch)
                .unwrap_or_else(Error::raise),
            None => self.dropout.forward(y),
        }
    }

    /// The block on `x + branch`, without its own last addition: returns the two terms, which the next norm adds in its own
    /// pass over memory. Dropout draws from the key of `draw`, in streams by the number of the block; without it from the
    /// device's generator.
    pub(super) fn run_open(
        &self,
        x: Tensor<3>,
        branch: Option<Tensor<3>>,
        sequence: Sequence<RecurrentState>,
        draw: Option<(Tensor<1, Int>, u32)>,
    ) -> Result<(Tensor<3>, Tensor<3>, RecurrentState), Error> {
        let (normed, x) = match branch {
            Some(branch) => self.norm_cell.forward_sum(x, branch),
            None => (self.norm_cell.forward(x.clone()), x),
        };
        let (y, state) = self.cell.checked_run(normed, sequence)?;
        let y = match &self.out {
            Some(out) => linear(out, y),
            None => y,
        };
        let (y, x) = self.norm_mlp.forward_sum(x, self.dropped(y, &draw, 0));
        let y = mlp(&self.up, &self.down, y);
        Ok((x, self.dropped(y, &draw, 1), state))
    }
}

impl Recurrent for Block {
    type State = RecurrentState;

    riverrun::run_checked!();

    fn checked_run(
        &self,
        x: Tensor<3>,
        sequence: Sequence<RecurrentState>,
    ) -> Result<(Tensor<3>, RecurrentState), Error> {
        let ([batch, steps, _], gamma) = (x.dims(), self.norm_cell.gamma.val());
        fits("x", &gamma, &x, &[batch, steps, gamma.dims()[0]])?;
        let lengths = sequence.lengths.clone();
        let x = without_padding(x, lengths.as_deref())?;
        let (x, branch, state) = self.run_open(x, None, sequence, None)?;
        // Norms and the MLP make something of zeros.
        let y = without_padding(x + branch, lengths.as_deref())?;
        Ok((y, state))
    }
}
