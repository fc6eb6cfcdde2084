//! The attention of a model, and its keys and values in a state.

use riverrun::nn::{AttentionState, MultiHeadAttention};

use super::{
    AnyLanguageModel, AnyLmState, AnyRecurrent, GriffinBlockState, RecurrentState, TemporalMixing,
};

impl AnyLanguageModel {
    /// The recurrent layer of each block, or attention in its place, first to last: of a [`LanguageModel`](crate::LanguageModel) or a
    /// [`Decoder`](crate::Decoder).
    pub fn mixers(&self) -> Vec<&AnyRecurrent> {
        match self {
            Self::Recurrent(model) => model.blocks.iter().map(|block| &block.cell).collect(),
            Self::Decoder(model) => model.blocks.iter().map(|block| &block.mixer).collect(),
            _ => Vec::new(),
        }
    }

    /// The attention of the blocks that have it, first to last.
    pub fn attentions(&self) -> Vec<&MultiHeadAttention> {
        match self {
            Self::Gpt2(model) => model.blocks.iter().map(|block| &block.attention).collect(),
            Self::Griffin(model) => {
                let blocks = model.blocks.iter();
                let attention = blocks.filter_map(|block| match &block.temporal {
                    TemporalMixing::Attention(layer) => Some(&layer.attention),
                    TemporalMixing::Recurrence(_) => None,
                });
                attention.collect()
            }
            _ => {
                let mixers = self.mixers().into_iter();
                let attention = mixers.filter_map(|layer| match layer {
                    AnyRecurrent::Attention(layer) => Some(layer),
                    _ => None,
                });
                attention.collect()
            }
        }
    }

    /// Whether a step of `batch` sequences leaves the next state of each [mixer](Self::mixers) in the memory of this one where no other
    /// tensor shares it.
    pub fn steps_in_place(&self, batch: usize) -> Vec<bool> {
        let few = self.takes_few_rows(batch);
        let mixers = self.mixers().into_iter();
        mixers
            .map(|layer| layer.steps_in_place(batch, few))
            .collect()
    }
}

impl AnyLmState {
    /// The states of the [attention](AnyLanguageModel::attentions), first to last.
    pub fn caches(&mut self) -> Vec<&mut AttentionState> {
        match self {
            Self::Recurrent(state) => {
                let blocks = state.blocks.iter_mut();
                let caches = blocks.filter_map(|block| match block {
                    RecurrentState::Attention(cache) => Some(cache),
                    _ => None,
                });
                caches.collect()
            }
            Self::Griffin(state) => {
                let blocks = state.blocks.iter_mut();
                let caches = blocks.filter_map(|block| match block {
                    GriffinBlockState::Attention(cache) => Some(cache),
                    GriffinBlockState::Recurrence { .. } => None,
                });
                caches.collect()
            }
            Self::Gpt2(state) => state.blocks.iter_mut().collect(),
            Self::Rwkv(_) => Vec::new(),
        }
    }
}
