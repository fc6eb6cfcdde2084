//! A language model: tokens in, logits of the next token out.

use burn::config::Config;
use burn::module::{Initializer, Module};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor};
use riverrun::internal::{self, padding};
use riverrun::nn::quantized::embedding;
use riverrun::nn::{RmsNorm, RmsNormConfig};
use riverrun::ops::SavedStates;
use riverrun::{Error, Sequence};

use super::forward::{language_model, starts};
use super::head::Head;
use super::{Block, BlockConfig, RecurrentKind, RecurrentState};

/// Configuration of [`LanguageModel`].
#[derive(Config, Debug)]
#[non_exhaustive]
pub struct LanguageModelConfig {
    /// Distinct tokens.
    pub vocab: usize,
    /// Features of the residual stream.
    pub width: usize,
    /// Blocks.
    pub layers: usize,
    /// The recurrent layer.
    #[config(default = "RecurrentKind::MinGru")]
    pub cell: RecurrentKind,
    /// The recurrent state is this many times the width.
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
    /// Whether the recurrent layers' projections have biases.
    #[config(default = true)]
    pub bias: bool,
    /// Whether the projection to the vocabulary has the embedding's weights, which saves `vocab · width` of them.
    ///
    /// Source: Press & Wolf, *Using the Output Embedding to Improve Language Models* (2017), section 2.
    /// `None`, as in configurations saved without this field, is `Some(false)`.
    pub tied: Option<bool>,
    /// Heads of layers that have them, and of the attention, a divisor of the width; as
    /// [`HeadSizes`](super::HeadSizes) chooses when absent.
    pub heads: Option<usize>,
    /// Every so many blocks one has causal attention with rotary positions in place of the recurrent layer; none when absent.
    pub attention_every: Option<usize>,
    /// Steps that this attention sees; all when absent.
    pub window: Option<usize>,
}

/// Embedding, residual blocks, norm, projection to the vocabulary.
#[derive(Module, Debug)]
pub struct LanguageModel {
    /// `[vocab, width]`.
    pub embedding: Embedding,
    /// The blocks, first to last.
    pub blocks: Vec<Block>,
    /// The norm before the projection.
    pub norm: RmsNorm,
    /// `[width, vocab]`, without bias; absent where the embedding's weights are used.
    pub out: Option<Linear>,
}

/// The states of all blocks.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LmState {
    /// The state of each block, first to last.
    pub blocks: Vec<RecurrentState>,
}

impl LmState {
    /// The states of the blocks, first to last.
    pub fn new(blocks: Vec<RecurrentState>) -> Self {
        Self { blocks }
    }

    /// The same values, detached from the graph: truncated backpropagation through time.
    pub fn detach(self) -> Self {
        Self {
            blocks: self
                .blocks
                .into_iter()
                .map(RecurrentState::detach)
                .collect(),
        }
    }
}

impl LanguageModelConfig {
    pub(super) fn is_tied(&self) -> bool {
        self.tied.unwrap_or(false)
    }

    /// How many blocks have attention.
    pub(super) fn attentions(&self) -> usize {
        self.attention_every
            .map_or(0, |every| self.layers / every.max(1))
    }

    /// The configuration of the blocks with attention, or of the others.
    pub(super) fn block(&self, attention: bool) -> BlockConfig {
        BlockConfig::new(self.width, self.cell)
            .with_expansion(self.expansion)
            .with_time_scale(self.time_scale)
            .with_mlp(self.mlp)
            .with_dropout(self.dropout)
            .with_bias(self.bias)
            .with_heads(self.heads)
            .with_attention(attention)
            .with_window(self.window)
    }

    /// A model with fresh weights.
    ///
    /// # Panics
    /// Where [`check`](Self::check) returns an error.
    pub fn init(&self, device: &Device) -> LanguageModel {
        self.check()
            .unwrap_or_else(|error| panic!("language model: {error}"));
        let block = |i: usize| {
            let every = self.attention_every;
            self.block(every.is_some_and(|every| (i + 1).is_multiple_of(every)))
        };
        let embedding = EmbeddingConfig::new(self.vocab, self.width);
        // Logits of a tied model are products with the embedding: of rows drawn from N(0, 1) they would be too large.
        let embedding = match self.is_tied() {
            true => embedding.with_initializer(Initializer::Normal {
                mean: 0.0,
                std: (self.width as f64).powf(-0.5),
            }),
            false => embedding,
        };
        LanguageModel {
            embedding: embedding.init(device),
            blocks: (0..self.layers).map(|i| block(i).init(device)).collect(),
            norm: RmsNormConfig::new(self.width).init(device),
            out: (!self.is_tied()).then(|| {
                LinearConfig::new(self.width, self.vocab)
                    .with_bias(false)
                    .init(device)
            }),
        }
    }
}

language_model!(
    LanguageModel,
    LmState,
    "language model",
    "A state with another number of blocks; states, resets or lengths that do not fit."
);

impl LanguageModel {
    /// Sets which states of the recurrent layers are saved for the backward pass. This trades memory against time and does not
    /// change the results.
    pub fn with_saved_states(mut self, saved_states: SavedStates) -> Self {
        let block = |block: Block| block.with_saved_states(saved_states);
        self.blocks = self.blocks.into_iter().map(block).collect();
        self
    }

    pub(super) fn logits(
        &self,
        tokens: Tensor<2, Int>,
        mut sequence: Sequence<LmState>,
        key: Option<Tensor<1, Int>>,
        padded: bool,
    ) -> Result<(Tensor<3>, LmState), Error> {
        if !padded && let Some(step) = self.few_steps_of(&tokens, &mut sequence) {
            return step;
        }
        let (normed, state) = self.hidden(tokens, sequence, key)?;
        let head = match &self.out {
            Some(out) => Head::Own(&out.weight),
            None => Head::Tied(&self.embedding.weight),
        };
        Ok((head.logits(normed, None, padded)?, state))
    }

    /// The normalized output of the last block, `[B, T, width]`; dropout draws from the key, or without one from the device's
    /// generator.
    fn hidden(
        &self,
        tokens: Tensor<2, Int>,
        mut sequence: Sequence<LmState>,
        key: Option<Tensor<1, Int>>,
    ) -> Result<(Tensor<3>, LmState), Error> {
        let starts = starts(
            sequence.state.take().map(|state| state.blocks),
            self.blocks.len(),
        )?;
        let (sizes, lengths) = (tokens.dims(), sequence.lengths.as_deref());
        internal::lengths(lengths, sizes)?;
        // A padded token need not be one of the vocabulary.
        let tokens = match padding(lengths, sizes[1], &tokens.device()) {
            Some(padding) => tokens.mask_fill(padding.reshape(sizes), 0),
            None => tokens,
        };
        let x = embedding(&self.embedding.weight, tokens)?;
        let (mut x, mut branch) = (x, None);
        let mut states = Vec::with_capacity(self.blocks.len());
        for (i, (block, state)) in self.blocks.iter().zip(starts).enumerate() {
            let start = sequence.starting_from(state);
            let draw = key.clone().map(|key| (key, i as u32));
            let (sum, rest, state) = block.run_open(x, branch, start, draw)?;
            (x, branch) = (sum, Some(rest));
            states.push(state);
        }
        let normed = match branch {
            Some(branch) => self.norm.forward_sum(x, branch).0,
            None => self.norm.forward(x),
        };
        Ok((normed, LmState { blocks: states }))
    }
}
