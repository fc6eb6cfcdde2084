//! The node of a weight says which gradients are its own.

use burn::backend::Autodiff;
use burn::backend::tensor::FloatTensor;
use burn_autodiff::NodeId;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;

use super::{Early, EarlySumOps, put_aside};
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
