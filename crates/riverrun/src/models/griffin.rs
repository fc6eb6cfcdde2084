//! Griffin: gated linear recurrences mixed with local attention.

use burn::config::Config;
use burn::module::{Initializer, Module, Param};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor};

use super::head::Head;
use crate::Error;
use crate::nn::{
    AttentionState, LocalAttention, LocalAttentionConfig, Recurrent, RgLru, RgLruConfig, RmsNorm,
    RmsNormConfig, Sequence, try_linear,
};
use crate::ops::{self, SavedStates, gelu, try_short_convolution};

/// Every so many blocks one has local attention in place of the recurrence.
pub(super) const PERIOD: usize = 3;

/// Weights of the convolution for each channel.
pub(super) const TAPS: usize = 4;

/// Added to the mean squares of the norms.
const EPSILON: f64 = 1e-6;

/// Configuration of [`Griffin`].
#[derive(Config, Debug)]
#[non_exhaustive]
pub struct GriffinConfig {
    /// Distinct tokens.
    pub vocab: usize,
    /// Features of the residual stream.
    pub width: usize,
    /// Blocks; every third has local attention.
    pub layers: usize,
    /// Heads of the local attention, a divisor of `width`.
    pub heads: usize,
    /// Steps that the local attention sees.
    #[config(default = 2048)]
    pub window: usize,
    /// Features of the recurrence; `width` when absent.
    pub d_rnn: Option<usize>,
    /// The gated MLP's inner features are this many times the width.
    #[config(default = 3)]
    pub mlp: usize,
    /// The cap of the logits: `c tanh(x / c)`.
    #[config(default = "Some(30.0)")]
    pub logit_cap: Option<f64>,
    /// Blocks of the RG-LRU's gates, a divisor of `d_rnn`; as many as heads when absent, as in RecurrentGemma.
    pub gate_blocks: Option<usize>,
    /// The factor of the embedding; `√width` when absent. RecurrentGemma rounds it to bfloat16.
    pub embedding_scale: Option<f64>,
}

impl GriffinConfig {
    /// Checks the fields.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the first field that is out of its range.
    pub fn check(&self) -> Result<(), Error> {
        let fields = [
            ("vocab", self.vocab),
            ("width", self.width),
            ("layers", self.layers),
            ("heads", self.heads),
            ("window", self.window),
            ("d_rnn", self.d_rnn.unwrap_or(self.width)),
            ("mlp", self.mlp),
        ];
        if let Some((field, _)) = fields.into_iter().find(|(_, value)| *value == 0) {
            return Err(Error::Invalid(format!(
                "{field}: expected at least 1, found 0"
            )));
        }
        if !self.width.is_multiple_of(self.heads) {
            let (width, heads) = (self.width, self.heads);
            return Err(Error::Invalid(format!(
                "heads: expected a divisor of the width {width}, found {heads}"
            )));
        }
        let (hidden, blocks) = (self.d_rnn.unwrap_or(self.width), self.gate_blocks());
        if blocks == 0 || !hidden.is_multiple_of(blocks) {
            return Err(Error::Invalid(format!(
                "gate_blocks: expected a divisor of d_rnn {hidden}, found {blocks}"
            )));
        }
        if let Some(scale) = self.embedding_scale.filter(|scale| !scale.is_finite()) {
            return Err(Error::Invalid(format!(
                "embedding_scale: expected a finite number, found {scale}"
            )));
        }
        match self.logit_cap {
            Some(cap) if !(cap.is_finite() && cap > 0.0) => Err(Error::Invalid(format!(
                "logit_cap: expected a number above 0, found {cap}"
            ))),
            _ => self.try_size().map(|_| ()),
        }
    }

    pub(super) fn gate_blocks(&self) -> usize {
        self.gate_blocks.unwrap_or(self.heads)
    }

    /// A model with fresh weights.
    ///
    /// # Panics
    /// Where [`check`](Self::check) returns an error.
    pub fn init(&self, device: &Device) -> Griffin {
        self.check()
            .unwrap_or_else(|error| panic!("Griffin: {error}"));
        let embedding = EmbeddingConfig::new(self.vocab, self.width);
        // The logits are products with the embedding.
        let embedding = embedding.with_initializer(Initializer::Normal {
            mean: 0.0,
            std: (self.width as f64).powf(-0.5),
        });
        Griffin {
            embedding: embedding.init(device),
            blocks: (0..self.layers).map(|i| self.block(i, device)).collect(),
            norm: self.norm(device),
            logit_cap: self.logit_cap,
            embedding_scale: self
                .embedding_scale
                .unwrap_or_else(|| (self.width as f64).sqrt()),
        }
    }

    fn norm(&self, device: &Device) -> RmsNorm {
        let config = RmsNormConfig::new(self.width);
        config.with_epsilon(EPSILON).init(device)
    }

    fn block(&self, index: usize, device: &Device) -> GriffinBlock {
        let (width, inner) = (self.width, self.mlp * self.width);
        let layer = |from, to| LinearConfig::new(from, to).init(device);
        let temporal = if index % PERIOD == PERIOD - 1 {
            let attention = LocalAttentionConfig::new(width, self.heads, self.window);
            TemporalMixing::Attention(attention.init(device))
        } else {
            let hidden = self.d_rnn.unwrap_or(width);
            let bound = (1.0 / TAPS as f64).sqrt();
            let taps = Initializer::Uniform {
                min: -bound,
                max: bound,
            };
            TemporalMixing::Recurrence(GriffinRecurrence {
                linear_x: layer(width, hidden),
                linear_y: layer(width, hidden),
                linear_out: layer(hidden, width),
                conv_weight: taps.init([TAPS, hidden], device),
                conv_bias: Initializer::Zeros.init([hidden], device),
                rg_lru: RgLruConfig::new(hidden, hidden)
                    .with_blocks(self.gate_blocks())
                    .with_scale_first(false)
                    .init(device),
            })
        };
        GriffinBlock {
            temporal_norm: self.norm(device),
            temporal,
            channel_norm: self.norm(device),
            gate: layer(width, inner),
            up: layer(width, inner),
            down: layer(inner, width),
        }
    }
}

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

/// The states of all blocks, of a size that does not grow with the steps.
#[derive(Debug, Clone)]
pub struct GriffinState {
    /// First block to last.
    pub blocks: Vec<GriffinBlockState>,
}

impl GriffinState {
    /// The same values, cut off from the graph that made them: truncated backpropagation through time.
    pub fn detach(self) -> Self {
        let detach = |state| match state {
            GriffinBlockState::Recurrence { inputs, h } => GriffinBlockState::Recurrence {
                inputs: inputs.detach(),
                h: h.detach(),
            },
            GriffinBlockState::Attention(state) => GriffinBlockState::Attention(state.detach()),
        };
        Self {
            blocks: self.blocks.into_iter().map(detach).collect(),
        }
    }
}

/// The refusal of a state of the other kind of block.
fn other_kind() -> Error {
    Error::Unsupported("the state of a Griffin block of the other kind".into())
}

impl GriffinRecurrence {
    fn try_run(
        &self,
        x: Tensor<3>,
        sequence: Sequence<(Tensor<3>, Tensor<2>)>,
    ) -> Result<(Tensor<3>, GriffinBlockState), Error> {
        let (inputs, h) = sequence.state.unzip();
        let start = Sequence {
            state: inputs,
            reset: sequence.reset.clone(),
            lengths: sequence.lengths.clone(),
        };
        let (weight, bias) = (self.conv_weight.val(), self.conv_bias.val());
        let branch = try_linear(&self.linear_x, x.clone())?;
        let (branch, inputs) = try_short_convolution(branch, weight, Some(bias), start)?;
        let start = Sequence {
            state: h,
            reset: sequence.reset,
            lengths: sequence.lengths,
        };
        let (branch, h) = self.rg_lru.try_run(branch, start)?;
        let gate = gelu(try_linear(&self.linear_y, x)?);
        let y = try_linear(&self.linear_out, gate * branch)?;
        Ok((y, GriffinBlockState::Recurrence { inputs, h }))
    }
}

impl Recurrent for GriffinBlock {
    type State = GriffinBlockState;

    fn try_run(
        &self,
        x: Tensor<3>,
        sequence: Sequence<GriffinBlockState>,
    ) -> Result<(Tensor<3>, GriffinBlockState), Error> {
        let normed = self.temporal_norm.forward(x.clone());
        let (reset, lengths) = (sequence.reset, sequence.lengths);
        let (y, state) = match &self.temporal {
            TemporalMixing::Recurrence(recurrence) => {
                let state = match sequence.state {
                    Some(GriffinBlockState::Recurrence { inputs, h }) => Some((inputs, h)),
                    Some(_) => return Err(other_kind()),
                    None => None,
                };
                let start = Sequence {
                    state,
                    reset,
                    lengths,
                };
                recurrence.try_run(normed, start)?
            }
            TemporalMixing::Attention(attention) => {
                let state = match sequence.state {
                    Some(GriffinBlockState::Attention(state)) => Some(state),
                    Some(_) => return Err(other_kind()),
                    None => None,
                };
                let start = Sequence {
                    state,
                    reset,
                    lengths,
                };
                let (y, state) = attention.try_run(normed, start)?;
                (y, GriffinBlockState::Attention(state))
            }
        };
        let (normed, x) = self.channel_norm.forward_sum(x, y);
        let gate = gelu(try_linear(&self.gate, normed.clone())?);
        let inner = gate * try_linear(&self.up, normed)?;
        Ok((x + try_linear(&self.down, inner)?, state))
    }
}

/// Griffin, a language model of residual blocks: two of every three mix the steps by the RG-LRU behind a short convolution, the
/// third by local attention. The projection to the vocabulary has the embedding's weights.
///
/// The blocks and their numbers are RecurrentGemma's, whose weights
/// [`griffin_from_huggingface`](crate::weights::griffin_from_huggingface) reads.
///
/// Source: De et al., *Griffin: Mixing Gated Linear Recurrences with Local Attention for Efficient Language Models* (2024),
/// section 2; Botev et al., *RecurrentGemma* (2024), section 2.
#[derive(Module, Debug)]
pub struct Griffin {
    /// `[vocab, width]`.
    pub embedding: Embedding,
    /// The blocks, first to last.
    pub blocks: Vec<GriffinBlock>,
    /// Before the projection.
    pub norm: RmsNorm,
    /// The cap of the logits.
    #[module(skip)]
    pub logit_cap: Option<f64>,
    /// The factor of the embedding.
    #[module(skip)]
    pub embedding_scale: f64,
}

impl Griffin {
    /// Sets which states of the recurrent layers are saved for the backward pass. This trades memory against time and does not
    /// change the results.
    pub fn with_saved_states(mut self, saved_states: SavedStates) -> Self {
        for block in &mut self.blocks {
            if let TemporalMixing::Recurrence(part) = &mut block.temporal {
                part.rg_lru.saved_states = saved_states;
            }
        }
        self
    }

    /// Runs over tokens `[B, T]`: logits `[B, T, vocab]` and the state after the last token of each sequence.
    ///
    /// # Panics
    /// Where [`try_forward`](Self::try_forward) returns an error.
    pub fn forward(
        &self,
        tokens: Tensor<2, Int>,
        sequence: Sequence<GriffinState>,
    ) -> (Tensor<3>, GriffinState) {
        self.try_forward(tokens, sequence)
            .unwrap_or_else(|error| panic!("Griffin: {error}"))
    }

    /// [`forward`](Self::forward).
    ///
    /// # Errors
    /// A state of another number or order of blocks; states or resets that do not fit; sequences of different lengths.
    pub fn try_forward(
        &self,
        tokens: Tensor<2, Int>,
        sequence: Sequence<GriffinState>,
    ) -> Result<(Tensor<3>, GriffinState), Error> {
        self.logits(tokens, sequence, false)
    }

    /// [`forward`](Self::forward) with logits in the form that a GPU multiplies fastest, as
    /// [`LanguageModel::forward_padded`](super::LanguageModel::forward_padded).
    ///
    /// # Panics
    /// Where [`try_forward`](Self::try_forward) returns an error.
    pub fn forward_padded(
        &self,
        tokens: Tensor<2, Int>,
        sequence: Sequence<GriffinState>,
    ) -> (Tensor<3>, GriffinState) {
        self.logits(tokens, sequence, true)
            .unwrap_or_else(|error| panic!("Griffin: {error}"))
    }

    pub(super) fn logits(
        &self,
        tokens: Tensor<2, Int>,
        sequence: Sequence<GriffinState>,
        padded: bool,
    ) -> Result<(Tensor<3>, GriffinState), Error> {
        let layers = self.blocks.len();
        let mut starts = match sequence.state {
            Some(state) if state.blocks.len() != layers => {
                return Err(Error::Shape {
                    what: "the states of the blocks",
                    expected: vec![layers],
                    found: vec![state.blocks.len()],
                });
            }
            Some(state) => state.blocks.into_iter().map(Some).collect(),
            None => vec![None; layers],
        };
        let table = self.embedding.weight.val();
        let mut x = ops::try_embedding(table.clone(), tokens)? * self.embedding_scale;
        let mut blocks = Vec::with_capacity(layers);
        for (block, state) in self.blocks.iter().zip(starts.drain(..)) {
            let start = Sequence {
                state,
                reset: sequence.reset.clone(),
                lengths: sequence.lengths.clone(),
            };
            let (y, state) = block.try_run(x, start)?;
            x = y;
            blocks.push(state);
        }
        let x = self.norm.forward(x);
        let logits = Head::Tied(table).logits(x, self.logit_cap, padded)?;
        Ok((logits, GriffinState { blocks }))
    }

    /// One token of each sequence, `[B]`: logits `[B, vocab]` and the next state.
    ///
    /// # Panics
    /// Where [`try_forward`](Self::try_forward) returns an error.
    pub fn step(
        &self,
        tokens: Tensor<1, Int>,
        state: Option<GriffinState>,
    ) -> (Tensor<2>, GriffinState) {
        let (logits, state) = self.forward(tokens.unsqueeze_dim(1), Sequence::from(state));
        (logits.squeeze_dim(1), state)
    }
}
