//! RWKV-7.

mod config;

use burn::module::Module;
use burn::nn::{Embedding, Linear};
use burn::tensor::{Int, Tensor};
use riverrun::nn::quantized::embedding;
use riverrun::nn::{LayerNorm, MatrixLayerState, Recurrent, Rwkv7, Rwkv7ChannelMix};
use riverrun::{Error, Sequence};

use super::forward::{language_model, starts};
use super::head::Head;

pub use config::RwkvConfig;

/// `x + time(norm(x))`, then `x + channels(norm(x))`.
#[derive(Module, Debug)]
pub struct RwkvBlock {
    /// Before the time mixing.
    pub time_norm: LayerNorm,
    /// The time mixing.
    pub time: Rwkv7,
    /// Before the channel mixing.
    pub channel_norm: LayerNorm,
    /// The channel mixing.
    pub channels: Rwkv7ChannelMix,
}

/// RWKV-7 "Goose": embedding, norm, blocks of time and channel mixing, norm, projection to the vocabulary. The time mixings
/// after the first mix its values into their own.
///
/// Source: Peng et al., *RWKV-7 "Goose" with Expressive Dynamic State Evolution* (2025), section 4;
/// [`Published`](crate::weights::Published) reads the published weights.
#[derive(Module, Debug)]
pub struct Rwkv {
    /// `[vocab, width]`.
    pub embedding: Embedding,
    /// After the embedding.
    pub embedding_norm: LayerNorm,
    /// The blocks, first to last.
    pub blocks: Vec<RwkvBlock>,
    /// Before the projection.
    pub norm: LayerNorm,
    /// `[width, vocab]`, without bias.
    pub out: Linear,
}

/// The state of an [`RwkvBlock`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RwkvBlockState {
    /// The state of the time mixing.
    pub time: MatrixLayerState,
    /// `[B, 1, width]`: the last input of the channel mixing.
    pub channels: Tensor<3>,
}

/// The states of all blocks, of a size that does not grow with the steps.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RwkvState {
    /// First block to last.
    pub blocks: Vec<RwkvBlockState>,
}

impl RwkvState {
    /// The same values, cut off from the graph that made them: truncated backpropagation through time.
    pub fn detach(self) -> Self {
        let detach = |state: RwkvBlockState| RwkvBlockState {
            time: state.time.detach(),
            channels: state.channels.detach(),
        };
        Self {
            blocks: self.blocks.into_iter().map(detach).collect(),
        }
    }
}

language_model!(
    Rwkv,
    RwkvState,
    "RWKV",
    "A state of another number of blocks; states, resets or lengths that do not fit."
);

impl Rwkv {
    /// RWKV has no dropout, and so no use for a key.
    pub(super) fn logits(
        &self,
        tokens: Tensor<2, Int>,
        mut sequence: Sequence<RwkvState>,
        _key: Option<Tensor<1, Int>>,
        padded: bool,
    ) -> Result<(Tensor<3>, RwkvState), Error> {
        let layers = self.blocks.len();
        let starts = starts(sequence.state.take().map(|state| state.blocks), layers)?;
        let x = embedding(&self.embedding.weight, tokens)?;
        let mut x = self.embedding_norm.forward(x);
        let (mut branch, mut values) = (None, None);
        let mut blocks = Vec::with_capacity(layers);
        for (block, state) in self.blocks.iter().zip(starts) {
            let (time, channels) = state.map(|state| (state.time, state.channels)).unzip();
            // Each norm adds the branch before it in its own pass over memory.
            let (normed, sum) = match branch {
                Some(branch) => block.time_norm.forward_sum(x, branch),
                None => (block.time_norm.forward(x.clone()), x),
            };
            let start = sequence.starting_from(time);
            let (y, time, own) = block.time.run_mixing(normed, start, values.clone())?;
            values.get_or_insert(own);
            let (normed, sum) = block.channel_norm.forward_sum(sum, y);
            let start = sequence.starting_from(channels);
            let (y, channels) = block.channels.checked_run(normed, start)?;
            (x, branch) = (sum, Some(y));
            blocks.push(RwkvBlockState { time, channels });
        }
        let x = match branch {
            Some(branch) => self.norm.forward_sum(x, branch).0,
            None => self.norm.forward(x),
        };
        let logits = Head::Own(&self.out.weight).logits(x, None, padded)?;
        Ok((logits, RwkvState { blocks }))
    }
}
