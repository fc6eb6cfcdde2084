//! The node of a weight says which gradients are its own.

use burn::backend::Autodiff;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn_autodiff::NodeId;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;

use super::{Early, EarlySumOps, gather_rows, put_aside, put_sum};
use crate::ops::enqueue::EnqueueOps;
use crate::ops::support::Maybe;
use crate::ops::support::autodiff::outer;

impl<B: EnqueueOps, C: CheckpointStrategy> EarlySumOps for Autodiff<B, C> {
    fn early_sum(weight: FloatTensor<Self>, early: Early) -> Maybe<Self> {
        let sum = early.remove::<B>(weight.id().value);
        Maybe::from_option(sum.map(outer::<B, C>))
    }
}

/// The gradient of a weight that is a `leaf`, unless it was put aside. Others are needed before the end.
pub(in crate::ops) fn early<B: EnqueueOps>(
    leaf: Option<NodeId>,
    gradient: FloatTensor<B>,
) -> Option<FloatTensor<B>> {
    match leaf {
        Some(leaf) => put_aside::<B>(leaf.value, gradient),
        None => Some(gradient),
    }
}

/// The gradient of a table that is a `leaf` from those of all ranks' outputs, where a backward pass sums gradients so: `made` makes it of
/// the gradients and the tokens. Whether it was put aside.
pub(in crate::ops) fn early_rows<B: EnqueueOps>(
    leaf: Option<NodeId>,
    d_y: &FloatTensor<B>,
    tokens: &IntTensor<B>,
    vocab: usize,
    made: impl FnOnce(FloatTensor<B>, IntTensor<B>) -> FloatTensor<B>,
) -> bool {
    let Some(leaf) = leaf else { return false };
    let Some((d_y, tokens)) = gather_rows::<B>(d_y, tokens, vocab) else {
        return false;
    };
    put_sum::<B>(leaf.value, made(d_y, tokens));
    true
}

/// The number of a parent that is a leaf of the graph. A macro, as Burn does not export the type of its nodes.
macro_rules! leaf_id {
    ($parent:expr) => {
        $parent
            .as_ref()
            .filter(|node| node.parents.is_empty())
            .map(|node| node.id)
    };
}
pub(in crate::ops) use leaf_id;
