//! A step of a few sequences on a GPU, in three launches a block: there the launches of a step take longer than its products.

use burn::nn::Linear;
use burn::tensor::{Int, Tensor};
use riverrun::internal::{FewRows, takes_few_rows};
use riverrun::ops::{self, Gate};
use riverrun::{Error, Sequence};

use super::head::Head;
use super::{AnyRecurrent, Block, LanguageModel, LmState, RecurrentState};

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

impl Block {
    /// A step of `x`, `[B, width]`, from a state of its layer.
    fn few_steps(&self, x: Tensor<2>, h: Tensor<2>) -> Result<(Tensor<2>, Tensor<2>), Error> {
        let (gate, projection) = gated(&self.cell).expect("checked for every block");
        let cell = FewRows {
            norm: Some(&self.norm_cell),
            product: projection,
        };
        let (x, h) = cell.step(x, h, gate)?;
        let up = FewRows {
            norm: Some(&self.norm_mlp),
            product: &self.up,
        };
        let down = FewRows {
            norm: None,
            product: &self.down,
        };
        Ok((down.add(up.gelu(x.clone())?, x)?, h))
    }
}

impl LanguageModel {
    /// Whether a step from this state updates it in its memory, where no other tensor shares that.
    #[doc(hidden)]
    pub fn steps_in_place(&self, state: &LmState) -> bool {
        let weight = self.embedding.weight.val();
        let fits = |(block, state): (&Block, &RecurrentState)| {
            let RecurrentState::Vector(state) = state else {
                return false;
            };
            let [rows, _] = state.h.dims();
            block.out.is_none()
                && gated(&block.cell).is_some()
                && state.c.is_none()
                && takes_few_rows(&weight.device(), weight.dtype(), rows)
        };
        state.blocks.len() == self.blocks.len() && self.blocks.iter().zip(&state.blocks).all(fits)
    }

    /// Whether [`few_steps`](Self::few_steps) takes this sequence.
    pub(super) fn takes_few_steps(
        &self,
        tokens: &Tensor<2, Int>,
        sequence: &Sequence<LmState>,
    ) -> bool {
        let alone =
            sequence.lengths.is_none() && sequence.reset.is_none() && sequence.neighbours.is_none();
        let [_, steps] = tokens.dims();
        let state = sequence.state.as_ref();
        alone && steps == 1 && state.is_some_and(|state| self.steps_in_place(state))
    }

    /// Logits `[B, 1, vocab]` of tokens `[B, 1]`, and the next state.
    pub(super) fn few_steps(
        &self,
        tokens: Tensor<2, Int>,
        state: LmState,
    ) -> Result<(Tensor<3>, LmState), Error> {
        let x = ops::embedding(self.embedding.weight.val(), tokens)?;
        let [batch, _, width] = x.dims();
        let mut x = x.reshape([batch, width]);
        let mut blocks = Vec::with_capacity(self.blocks.len());
        for (block, state) in self.blocks.iter().zip(state.blocks) {
            let RecurrentState::Vector(state) = state else {
                return Err(Error::Unsupported("a step from another state".into()));
            };
            let (y, h) = block.few_steps(x, state.h)?;
            x = y;
            blocks.push(RecurrentState::vector(h, None));
        }
        let logits = match &self.out {
            Some(out) => {
                let head = FewRows {
                    norm: Some(&self.norm),
                    product: out,
                };
                head.product(x)?.unsqueeze_dim(1)
            }
            None => {
                let normed = self.norm.forward(x).unsqueeze_dim(1);
                Head::Tied(&self.embedding.weight).logits(normed, None, false)?
            }
        };
        Ok((logits, LmState { blocks }))
    }
}
