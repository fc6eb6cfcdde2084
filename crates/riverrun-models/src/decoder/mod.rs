//! A language model of pre-norm blocks, each with a mixing of its own: the shape of most published recurrent models.

mod block;
mod config;

use burn::module::Module;
use burn::nn::{Embedding, Linear};
use burn::tensor::{Int, Tensor};
use riverrun::nn::RmsNorm;
use riverrun::nn::quantized::embedding;
use riverrun::{Error, Sequence};

use super::LmState;
use super::forward::{language_model, starts};
use super::head::Head;

pub use block::{DecoderBlock, GatedMlp};
pub use config::{DecoderConfig, MixerConfig};

/// Embedding, residual blocks `x + mixer(norm(x))` and `x + mlp(norm(x))`, norm, projection to the vocabulary; all norms are
/// RMS norms. Each block has a mixing of its own kind and sizes: Mamba-2 is such a model without MLPs, Qwen3-Next and Qwen3.5
/// are ones of Gated DeltaNet with gated attention in every fourth block, xLSTM-7B is one of mLSTM.
///
/// [`Published`](crate::weights::Published) reads the files of these models.
#[derive(Module, Debug)]
pub struct Decoder {
    /// `[vocab, width]`.
    pub embedding: Embedding,
    /// The blocks, first to last.
    pub blocks: Vec<DecoderBlock>,
    /// Before the projection.
    pub norm: RmsNorm,
    /// `[width, vocab]`, without bias; absent where the embedding's weights are used.
    pub out: Option<Linear>,
    /// The cap of the logits.
    #[module(skip)]
    pub logit_cap: Option<f64>,
}

language_model!(
    Decoder,
    LmState,
    "decoder",
    "A state of another number or order of blocks; states, resets or lengths that do not fit."
);

impl Decoder {
    /// A decoder has no dropout, and so no use for a key.
    pub(super) fn logits(
        &self,
        tokens: Tensor<2, Int>,
        mut sequence: Sequence<LmState>,
        _key: Option<Tensor<1, Int>>,
        padded: bool,
    ) -> Result<(Tensor<3>, LmState), Error> {
        if !padded && let Some(step) = self.few_steps_of(&tokens, &mut sequence) {
            return step;
        }
        let layers = self.blocks.len();
        let starts = starts(sequence.state.take().map(|state| state.blocks), layers)?;
        let table = &self.embedding.weight;
        let mut x = embedding(table, tokens)?;
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
        let head = match &self.out {
            Some(out) => Head::Own(&out.weight),
            None => Head::Tied(table),
        };
        Ok((head.logits(x, self.logit_cap, padded)?, LmState { blocks }))
    }
}
