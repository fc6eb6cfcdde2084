//! Griffin: gated linear recurrences mixed with local attention.

mod block;
mod config;

use burn::module::Module;
use burn::nn::Embedding;
use burn::tensor::{Int, Tensor};
use riverrun::nn::RmsNorm;
use riverrun::nn::quantized::embedding;
use riverrun::ops::SavedStates;
use riverrun::{Error, Sequence};

use super::forward::{language_model, starts};
use super::head::Head;

pub use block::{GriffinBlock, GriffinBlockState, GriffinRecurrence, TemporalMixing};
pub use config::GriffinConfig;
pub(super) use config::{PERIOD, TAPS};

/// The states of all blocks, of a size that does not grow with the steps.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct GriffinState {
    /// First block to last.
    pub blocks: Vec<GriffinBlockState>,
}

impl GriffinState {
    /// The same values, cut off from the graph that made them: truncated backpropagation through time.
    pub fn detach(self) -> Self {
        Self {
            blocks: self
                .blocks
                .into_iter()
                .map(GriffinBlockState::detach)
                .collect(),
        }
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

language_model!(
    Griffin,
    GriffinState,
    "Griffin",
    "A state of another number or order of blocks; states or resets that do not fit; sequences of different lengths."
);

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

    /// Griffin has no dropout, and so no use for a key.
    pub(crate) fn logits(
        &self,
        tokens: Tensor<2, Int>,
        mut sequence: Sequence<GriffinState>,
        _key: Option<Tensor<1, Int>>,
        padded: bool,
    ) -> Result<(Tensor<3>, GriffinState), Error> {
        let layers = self.blocks.len();
        let starts = starts(sequence.state.take().map(|state| state.blocks), layers)?;
        let table = &self.embedding.weight;
        let mut x = embedding(table, tokens)? * self.embedding_scale;
        let mut branch: Option<Tensor<3>> = None;
        let mut blocks = Vec::with_capacity(layers);
        for (block, state) in self.blocks.iter().zip(starts) {
            let start = sequence.starting_from(state);
            let (sum, y, state) = block.run_open(x, branch, start)?;
            (x, branch) = (sum, Some(y));
            blocks.push(state);
        }
        let x = match branch {
            Some(branch) => self.norm.forward_sum(x, branch).0,
            None => self.norm.forward(x),
        };
        let logits = Head::Tied(table).logits(x, self.logit_cap, padded)?;
        Ok((logits, GriffinState { blocks }))
    }
}
