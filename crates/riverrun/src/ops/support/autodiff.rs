//! What the differentiating backends of several operations share.
//!
//! Burn's graph has one output a node. The states are one node, and the last state is a second one whose only
//! parent is the first: in the backward pass it runs before its parent and leaves its gradient, `[B, D]`, where
//! the parent picks it up. So a gradient of the last state costs `B·D`, not a tensor of `B·T·D` zeros.

use std::sync::{Arc, Mutex};

use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, AutodiffBackend, Backend, TensorMetadata};
use burn::tensor::Shape;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};

use super::Maybe;

/// A tensor of the differentiating backend.
pub(crate) type Tracked<B, C> = FloatTensor<Autodiff<B, C>>;

/// Where the last state's node leaves its gradient for the states' node.
pub(crate) type Slot<B> = Arc<Mutex<Option<FloatTensor<B>>>>;

pub(crate) fn take<B: Backend>(slot: &Slot<B>) -> Option<FloatTensor<B>> {
    slot.lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
        .take()
}

/// The backward step of the last state.
#[derive(Debug)]
struct Last;

impl<B: Backend> Backward<B, 1> for Last {
    type State = (Slot<B>, Shape);

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let (slot, shape) = ops.state;
        let gradient = grads.consume::<B>(&ops.node);
        let [parent] = ops.parents;
        if let Some(parent) = parent {
            // The parent runs only if it has a gradient of its own: a zero that takes no memory.
            let (device, dtype) = (gradient.device(), gradient.dtype());
            let zero = B::float_zeros(Shape::new([1, 1, 1]), &device, dtype.into());
            grads.register::<B>(parent.id, B::float_expand(zero, shape));
            *slot.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(gradient);
        }
    }
}

/// The node of a last state, which leaves its gradient in the slot for the node of the states.
pub(crate) fn follow<B: Backend, C: CheckpointStrategy>(
    states: &Tracked<B, C>,
    last: FloatTensor<B>,
    slot: Slot<B>,
) -> Tracked<B, C> {
    match Backward::<B, 1>::prepare::<C>(Last, [states.node()])
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(prep) => prep.finish((slot, states.shape()), last),
        OpsKind::UnTracked(prep) => prep.finish(last),
    }
}

/// The tensor without its place in the graph.
pub(crate) fn inner<B: Backend, C: CheckpointStrategy>(tensor: Maybe<Autodiff<B, C>>) -> Maybe<B> {
    Maybe::from_option(tensor.into_option().map(|tensor| tensor.into_primitive()))
}

/// The tensor as a constant of the graph.
pub(crate) fn outer<B: Backend, C: CheckpointStrategy>(tensor: Maybe<B>) -> Maybe<Autodiff<B, C>> {
    Maybe::from_option(tensor.into_option().map(Autodiff::<B, C>::from_inner))
}
