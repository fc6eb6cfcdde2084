//! Differentiation: the backward pass saves the tokens.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Autodiff, TensorMetadata};
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};

use super::EmbeddingOps;
use crate::ops::early_sum::autodiff::{early_rows, leaf_id};
use crate::ops::support::autodiff::{inner, outer};

#[derive(Debug)]
struct Rows;

impl<B: EmbeddingOps> Backward<B, 1> for Rows {
    /// The tokens and the rows of the table.
    type State = (IntTensor<B>, usize);

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let d_y = grads.consume::<B>(&ops.node);
        let (tokens, vocab) = ops.state;
        let leaf = leaf_id!(ops.parents[0]);
        let made = |d_y, tokens| B::table_gradient(d_y, tokens, vocab);
        if early_rows::<B>(leaf, &d_y, &tokens, vocab, made) {
            return;
        }
        if let [Some(parent)] = ops.parents {
            grads.register::<B>(parent.id, made(d_y, tokens));
        }
    }
}

impl<B: EmbeddingOps, C: CheckpointStrategy> EmbeddingOps for Autodiff<B, C> {
    fn table_rows(weight: FloatTensor<Self>, tokens: IntTensor<Self>) -> FloatTensor<Self> {
        let vocab = weight.shape()[0];
        let prep = Backward::<B, 1>::prepare::<C>(Rows, [weight.node()]).compute_bound();
        let y = B::table_rows(inner::<B, C>(weight), tokens.clone());
        match prep.stateful() {
            OpsKind::Tracked(prep) => prep.finish((tokens, vocab), y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }

    fn table_gradient(
        d_y: FloatTensor<Self>,
        tokens: IntTensor<Self>,
        vocab: usize,
    ) -> FloatTensor<Self> {
        outer::<B, C>(B::table_gradient(inner::<B, C>(d_y), tokens, vocab))
    }
}
