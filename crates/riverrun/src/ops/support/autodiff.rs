//! Nodes of the autodiff graph that several operations share.
//!
//! Burn's graph has one output a node. An operation with several outputs is one node, the core, without an output that users
//! see, and one node for each output, whose only parent is the core. In the backward pass the outputs run before the core and
//! leave their gradients in slots; the core takes them from there. Nothing is added up and no zeros are made: a gradient of
//! the last state costs `B·D` numbers, and the core knows which of its outputs have gradients.

use std::sync::{Arc, Mutex};

use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, AutodiffBackend, Backend, TensorMetadata};
use burn_autodiff::NodeId;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::retro_forward::RetroForward;
use burn_autodiff::checkpoint::state::BackwardStates;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, NodeGuard, Ops, OpsKind};

use super::Maybe;

/// A tensor of the differentiating backend.
pub(crate) type Tracked<B, C> = FloatTensor<Autodiff<B, C>>;

/// The tensor without its node.
pub(crate) fn inner<B: Backend, C: CheckpointStrategy>(tensor: Tracked<B, C>) -> FloatTensor<B> {
    tensor.into_primitive()
}

/// The tensor as a constant of the graph.
pub(crate) fn outer<B: Backend, C: CheckpointStrategy>(tensor: FloatTensor<B>) -> Tracked<B, C> {
    Autodiff::<B, C>::from_inner(tensor)
}

/// The node of a tensor that may be absent; that of `stand_in` for an absent one, whose parent's gradient is then left out.
pub(crate) fn node_or<B: Backend, C: CheckpointStrategy>(
    tensor: &Maybe<Autodiff<B, C>>,
    stand_in: &Tracked<B, C>,
) -> NodeGuard {
    match tensor {
        Maybe::Some(tensor) => tensor.node(),
        Maybe::None => stand_in.node(),
    }
}

/// Registers each gradient with its parent, if both exist.
pub(crate) fn register<B: Backend, const N: usize>(
    ops: [Option<NodeId>; N],
    gradients: [Option<FloatTensor<B>>; N],
    grads: &mut Gradients,
) {
    for (parent, gradient) in ops.into_iter().zip(gradients) {
        if let (Some(parent), Some(gradient)) = (parent, gradient) {
            grads.register::<B>(parent, gradient);
        }
    }
}

/// The slot in which an output leaves its gradient for the core.
#[derive(Debug)]
pub(crate) struct Slot<B: Backend>(Arc<Mutex<Option<FloatTensor<B>>>>);

impl<B: Backend> Clone for Slot<B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<B: Backend> Default for Slot<B> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<B: Backend> Slot<B> {
    /// The gradient of the output; absent where no loss depends on it.
    pub fn take(&self) -> Option<FloatTensor<B>> {
        self.0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .take()
    }

    /// [`take`](Self::take), or zeros like `tensor`.
    pub fn take_or_zeros(&self, tensor: &FloatTensor<B>) -> FloatTensor<B> {
        self.take().unwrap_or_else(|| {
            B::float_zeros(tensor.shape(), &tensor.device(), tensor.dtype().into())
        })
    }
}

/// The backward step of an output.
#[derive(Debug)]
struct Output;

impl<B: Backend> Backward<B, 1> for Output {
    type State = Slot<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let gradient = grads.consume::<B>(&ops.node);
        *ops.state
            .0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(gradient);
    }
}

/// An output of `core`, which leaves its gradient in the slot.
pub(crate) fn output<B: Backend, C: CheckpointStrategy>(
    core: &Tracked<B, C>,
    value: FloatTensor<B>,
    slot: Slot<B>,
) -> Tracked<B, C> {
    match Backward::<B, 1>::prepare::<C>(Output, [core.node()])
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(prep) => prep.finish(slot, value),
        OpsKind::UnTracked(prep) => prep.finish(value),
    }
}

/// The value of the core as that of an output, where Burn's gradient checkpointing asks for it.
#[derive(Debug)]
struct Same<B: Backend>(NodeId, std::marker::PhantomData<FloatTensor<B>>);

impl<B: Backend> RetroForward for Same<B> {
    fn forward(&self, states: &mut BackwardStates, out_node: NodeId) {
        let value = states.get_state::<FloatTensor<B>>(&self.0);
        states.save(out_node, value);
    }
}

/// The output whose value is that of `core`, where Burn's gradient checkpointing may recompute it.
pub(crate) fn recomputed_output<B: Backend, C: CheckpointStrategy>(
    core: &Tracked<B, C>,
    slot: Slot<B>,
) -> Tracked<B, C> {
    let value = core.primitive().clone();
    match Backward::<B, 1>::prepare::<C>(Output, [core.node()])
        .memory_bound()
        .retro_forward(Same::<B>(core.id(), std::marker::PhantomData))
        .parents([core])
        .stateful()
    {
        OpsKind::Tracked(prep) => prep.finish(slot, value),
        OpsKind::UnTracked(prep) => prep.finish(value),
    }
}
