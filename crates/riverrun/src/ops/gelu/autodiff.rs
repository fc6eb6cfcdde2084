//! Differentiation: the backward pass saves the input.

use burn::backend::Autodiff;
use burn::backend::tensor::FloatTensor;
use burn_autodiff::NodeId;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};

use super::ElementwiseOps;
use crate::ops::support::autodiff::register;

#[derive(Debug)]
struct Gelu;

impl<B: ElementwiseOps> Backward<B, 1> for Gelu {
    type State = NodeId;

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let d_y = grads.consume::<B>(&ops.node);
        let x = checkpointer.retrieve_node_output::<FloatTensor<B>>(ops.state);
        if let [Some(parent)] = ops.parents {
            grads.register::<B>(parent.id, B::gelu_tanh_backward(x, d_y));
        }
    }
}

/// Parents: the gate, and what it multiplies.
#[derive(Debug)]
struct Geglu;

impl<B: ElementwiseOps> Backward<B, 2> for Geglu {
    /// Checkpointed: the parents.
    type State = [NodeId; 2];

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let d_y = grads.consume::<B>(&ops.node);
        let [gate, x] = ops
            .state
            .map(|id| checkpointer.retrieve_node_output::<FloatTensor<B>>(id));
        let (d_gate, d_x) = B::geglu_backward(gate, x, d_y);
        let parents = ops.parents.map(|parent| parent.map(|parent| parent.id));
        register::<B, 2>(parents, [Some(d_gate), Some(d_x)], grads);
    }
}

impl<B: ElementwiseOps, C: CheckpointStrategy> ElementwiseOps for Autodiff<B, C> {
    fn gelu_tanh(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let prep = Backward::<B, 1>::prepare::<C>(Gelu, [x.node()]).compute_bound();
        match prep.stateful() {
            OpsKind::Tracked(mut prep) => {
                let saved = prep.checkpoint(&x);
                prep.finish(saved, B::gelu_tanh(x.into_primitive()))
            }
            OpsKind::UnTracked(prep) => prep.finish(B::gelu_tanh(x.into_primitive())),
        }
    }

    fn geglu(gate: FloatTensor<Self>, x: FloatTensor<Self>) -> FloatTensor<Self> {
        let prep = Backward::<B, 2>::prepare::<C>(Geglu, [gate.node(), x.node()]).compute_bound();
        match prep.stateful() {
            OpsKind::Tracked(mut prep) => {
                let saved = [&gate, &x].map(|parent| prep.checkpoint(parent));
                prep.finish(saved, B::geglu(gate.into_primitive(), x.into_primitive()))
            }
            OpsKind::UnTracked(prep) => {
                prep.finish(B::geglu(gate.into_primitive(), x.into_primitive()))
            }
        }
    }
}
