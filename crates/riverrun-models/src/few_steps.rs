//! A step of a few sequences on a GPU, with norms and additions in the launches of the products: there the launches of a step take
//! longer than its bytes.

use burn::nn::Linear;
use burn::tensor::{Int, Tensor};
use riverrun::internal::{FewRows, takes_few_rows};
use riverrun::nn::{AttentionState, Recurrent, RmsNorm};
use riverrun::ops::{self, Gate};
use riverrun::{Error, Sequence};

use super::head::Head;
use super::{
    AnyHeadLayer, AnyLanguageModel, AnyRecurrent, Block, Decoder, DecoderBlock, Gpt2, Gpt2Block,
    Gpt2State, LanguageModel, LmState, RecurrentState,
};

/// The gate of a layer on a gated scan, and its projection.
fn gated(layer: &AnyRecurrent) -> Option<(Gate, &Linear)> {
    Some(match layer {
        AnyRecurrent::LinearRnn(layer) => (layer.gate(), &layer.projection),
        AnyRecurrent::MinGru(layer) => (layer.gate(), &layer.projection),
        AnyRecurrent::MinLstm(layer) => (layer.gate(), &layer.projection),
        AnyRecurrent::Gated(layer) => (layer.gate, &layer.projection),
        _ => return None,
    })
}

/// A product whose input is `norm(x)`.
fn normed<'a>(norm: &'a RmsNorm, product: &'a Linear) -> FewRows<'a> {
    FewRows {
        norm: Some(norm),
        product,
    }
}

/// `x W + y`.
fn added(product: &Linear, x: Tensor<2>, y: Tensor<2>) -> Result<Tensor<2>, Error> {
    let product = FewRows {
        norm: None,
        product,
    };
    product.add(x, y)
}

impl AnyRecurrent {
    /// `x + y` for the layer's step `y` on `norm(x)`, and the next state.
    fn add_step(
        &self,
        norm: &RmsNorm,
        x: Tensor<2>,
        state: RecurrentState,
    ) -> Result<(Tensor<2>, RecurrentState), Error> {
        let [batch, _] = x.dims();
        match (self, gated(self), state) {
            (_, Some((gate, projection)), RecurrentState::Vector(state)) => {
                let (x, h) = normed(norm, projection).step(x, state.h, gate)?;
                Ok((x, RecurrentState::vector(h, None)))
            }
            (Self::Heads(AnyHeadLayer::GatedDeltaNet(layer)), _, RecurrentState::Matrix(state))
                if layer.steps_in_place(batch) =>
            {
                let (x, state) = layer.add_step(norm, x, state)?;
                Ok((x, RecurrentState::Matrix(state)))
            }
            (Self::Attention(layer), _, RecurrentState::Attention(state))
                if state.place.is_some() =>
            {
                let (x, state) = layer.add_step(Some(norm), x.clone(), x, state)?;
                Ok((x, RecurrentState::Attention(state)))
            }
            (_, _, state) => {
                let (y, state) = self.checked_step(norm.forward(x.clone()), Some(state))?;
                Ok((x + y, state))
            }
        }
    }

    /// Whether a step of `batch` sequences leaves the next state in the memory of this one where no other tensor shares it; `few` says
    /// whether the model's steps have norms and additions in their products.
    pub(super) fn steps_in_place(&self, batch: usize, few: bool) -> bool {
        match self {
            Self::Heads(AnyHeadLayer::GatedDeltaNet(layer)) => layer.steps_in_place(batch),
            layer => few && gated(layer).is_some(),
        }
    }
}

impl Block {
    fn few_steps(
        &self,
        x: Tensor<2>,
        state: RecurrentState,
    ) -> Result<(Tensor<2>, RecurrentState), Error> {
        let (x, state) = self.cell.add_step(&self.norm_cell, x, state)?;
        let inner = normed(&self.norm_mlp, &self.up).gelu(x.clone())?;
        Ok((added(&self.down, inner, x)?, state))
    }
}

impl DecoderBlock {
    fn few_steps(
        &self,
        x: Tensor<2>,
        state: RecurrentState,
    ) -> Result<(Tensor<2>, RecurrentState), Error> {
        let (x, state) = self.mixer.add_step(&self.norm, x, state)?;
        let Some(mlp) = &self.mlp else {
            return Ok((x, state));
        };
        let inner = normed(&mlp.norm, &mlp.gate).gated(&mlp.up, x.clone())?;
        Ok((added(&mlp.down, inner, x)?, state))
    }
}

impl Gpt2Block {
    fn few_steps(
        &self,
        x: Tensor<2>,
        state: AttentionState,
    ) -> Result<(Tensor<2>, AttentionState), Error> {
        let normed = self.attention_norm.forward(x.clone());
        let (x, state) = self.attention.add_step(None, normed, x, state)?;
        let up = FewRows {
            norm: None,
            product: &self.up,
        };
        let inner = up.gelu(self.mlp_norm.forward(x.clone()))?;
        Ok((added(&self.down, inner, x)?, state))
    }
}

impl Gpt2 {
    pub(super) fn takes_few_rows(&self, batch: usize) -> bool {
        let weight = &*self.positions;
        takes_few_rows(&weight.device(), weight.dtype(), [batch, weight.dims()[1]])
    }

    /// Logits `[B, 1, vocab]` of embedded tokens `[B, 1, width]`, over the rings of states with places, and the next states.
    pub(super) fn few_steps(
        &self,
        x: Tensor<3>,
        states: Vec<AttentionState>,
    ) -> Result<(Tensor<3>, Gpt2State), Error> {
        let mut x = x.squeeze_dim(1);
        let mut blocks = Vec::with_capacity(states.len());
        for (block, state) in self.blocks.iter().zip(states) {
            let (y, state) = block.few_steps(x, state)?;
            x = y;
            blocks.push(state);
        }
        let normed = self.norm.forward(x).unsqueeze_dim(1);
        let logits = Head::Tied(&self.tokens).logits(normed, None, false)?;
        Ok((logits, Gpt2State { blocks }))
    }
}

impl AnyLanguageModel {
    /// Whether a step of `batch` sequences has norms and additions in its products.
    pub(super) fn takes_few_rows(&self, batch: usize) -> bool {
        match self {
            Self::Recurrent(model) => model.takes_few_rows(batch),
            Self::Decoder(model) => model.takes_few_rows(batch),
            _ => false,
        }
    }
}

/// Whether a sequence is one further step of sequences without padding and resets; of how many.
fn further(tokens: &Tensor<2, Int>, sequence: &Sequence<LmState>) -> Option<usize> {
    let alone =
        sequence.lengths.is_none() && sequence.reset.is_none() && sequence.neighbours.is_none();
    let [batch, steps] = tokens.dims();
    (alone && steps == 1 && sequence.state.is_some()).then_some(batch)
}

/// The steps of a model of blocks.
macro_rules! few_steps {
    ($model:ty) => {
        impl $model {
            /// [`few_steps`](Self::few_steps) of a sequence, if it takes it.
            pub(super) fn few_steps_of(
                &self,
                tokens: &Tensor<2, Int>,
                sequence: &mut Sequence<LmState>,
            ) -> Option<Result<(Tensor<3>, LmState), Error>> {
                let batch = further(tokens, sequence)?;
                let blocks = sequence.state.as_ref()?.blocks.len();
                if blocks != self.blocks.len() || !self.takes_few_rows(batch) {
                    return None;
                }
                let state = sequence.state.take()?;
                Some(self.few_steps(tokens.clone(), state))
            }

            /// Logits `[B, 1, vocab]` of tokens `[B, 1]`, and the next state.
            fn few_steps(
                &self,
                tokens: Tensor<2, Int>,
                state: LmState,
            ) -> Result<(Tensor<3>, LmState), Error> {
                let x = ops::embedding(self.embedding.weight.val(), tokens)?;
                let [batch, _, width] = x.dims();
                let mut x = x.reshape([batch, width]);
                let mut blocks = Vec::with_capacity(self.blocks.len());
                for (block, state) in self.blocks.iter().zip(state.blocks) {
                    let (y, state) = block.few_steps(x, state)?;
                    x = y;
                    blocks.push(state);
                }
                Ok((self.few_logits(x)?, LmState { blocks }))
            }
        }
    };
}

few_steps!(LanguageModel);
few_steps!(Decoder);

impl LanguageModel {
    fn takes_few_rows(&self, batch: usize) -> bool {
        // Not `val`, which makes a quantized table whole.
        let weight = &*self.embedding.weight;
        self.blocks.iter().all(|block| block.out.is_none())
            && takes_few_rows(&weight.device(), weight.dtype(), [batch, weight.dims()[1]])
    }

    fn few_logits(&self, x: Tensor<2>) -> Result<Tensor<3>, Error> {
        match &self.out {
            Some(out) => Ok(normed(&self.norm, out).product(x)?.unsqueeze_dim(1)),
            None => {
                let normed = self.norm.forward(x).unsqueeze_dim(1);
                Head::Tied(&self.embedding.weight).logits(normed, None, false)
            }
        }
    }
}

impl Decoder {
    fn takes_few_rows(&self, batch: usize) -> bool {
        // Not `val`, which makes a quantized table whole.
        let weight = &*self.embedding.weight;
        let mut mlps = self.blocks.iter().filter_map(|block| block.mlp.as_ref());
        mlps.all(|mlp| mlp.gate.bias.is_none() && mlp.up.bias.is_none())
            && takes_few_rows(&weight.device(), weight.dtype(), [batch, weight.dims()[1]])
    }

    fn few_logits(&self, x: Tensor<2>) -> Result<Tensor<3>, Error> {
        match (&self.out, self.logit_cap) {
            (Some(out), None) => Ok(normed(&self.norm, out).product(x)?.unsqueeze_dim(1)),
            (out, cap) => {
                let head = match out {
                    Some(out) => Head::Own(&out.weight),
                    None => Head::Tied(&self.embedding.weight),
                };
                head.logits(self.norm.forward(x).unsqueeze_dim(1), cap, false)
            }
        }
    }
}
