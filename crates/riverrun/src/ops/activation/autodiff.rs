//! Differentiation: the backward pass saves the inputs.

use burn::backend::Autodiff;
use burn::backend::tensor::FloatTensor;
use burn_autodiff::NodeId;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};
use riverrun_kernels::activation::Nonlinearity;

use super::ActivationOps;
use crate::ops::support::autodiff::{inner, outer, register};

/// Checkpointed: the parents.
#[derive(Debug, Clone)]
struct State<const N: usize> {
    parents: [NodeId; N],
    nonlinearity: Nonlinearity,
}

#[derive(Debug)]
struct Alone;

impl<B: ActivationOps> Backward<B, 1> for Alone {
    type State = State<1>;

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let d_y = grads.consume::<B>(&ops.node);
        let [x] = ops.state.parents;
        let x = checkpointer.retrieve_node_output::<FloatTensor<B>>(x);
        if let [Some(parent)] = ops.parents {
            let d_x = B::activate_backward(x, d_y, ops.state.nonlinearity);
            grads.register::<B>(parent.id, d_x);
        }
    }
}

/// Parents: the gate, and what it multiplies.
#[derive(Debug)]
struct Gated;

impl<B: ActivationOps> Backward<B, 2> for Gated {
    type State = State<2>;

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let d_y = grads.consume::<B>(&ops.node);
        let State {
            parents,
            nonlinearity,
        } = ops.state;
        let [gate, x] = parents.map(|id| checkpointer.retrieve_node_output::<FloatTensor<B>>(id));
        let (d_gate, d_x) = B::gated_backward(gate, x, d_y, nonlinearity);
        let parents = ops.parents.map(|parent| parent.map(|parent| parent.id));
        register::<B, 2>(parents, [Some(d_gate), Some(d_x)], grads);
    }
}

impl<B: ActivationOps, C: CheckpointStrategy> ActivationOps for Autodiff<B, C> {
    fn activate(x: FloatTensor<Self>, nonlinearity: Nonlinearity) -> FloatTensor<Self> {
        let prep = Backward::<B, 1>::prepare::<C>(Alone, [x.node()]).compute_bound();
        match prep.stateful() {
            OpsKind::Tracked(mut prep) => {
                let state = State {
                    parents: [prep.checkpoint(&x)],
                    nonlinearity,
                };
                prep.finish(state, B::activate(x.into_primitive(), nonlinearity))
            }
            OpsKind::UnTracked(prep) => prep.finish(B::activate(x.into_primitive(), nonlinearity)),
        }
    }

    fn gated(
        gate: FloatTensor<Self>,
        x: FloatTensor<Self>,
        nonlinearity: Nonlinearity,
    ) -> FloatTensor<Self> {
        let prep = Backward::<B, 2>::prepare::<C>(Gated, [gate.node(), x.node()]).compute_bound();
        let y = |gate: FloatTensor<Self>, x: FloatTensor<Self>| {
            B::gated(gate.into_primitive(), x.into_primitive(), nonlinearity)
        };
        match prep.stateful() {
            OpsKind::Tracked(mut prep) => {
                let state = State {
                    parents: [&gate, &x].map(|parent| prep.checkpoint(parent)),
                    nonlinearity,
                };
                prep.finish(state, y(gate, x))
            }
            OpsKind::UnTracked(prep) => prep.finish(y(gate, x)),
        }
    }

    fn activate_backward(
        x: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        nonlinearity: Nonlinearity,
    ) -> FloatTensor<Self> {
        let (x, d_y) = (inner::<B, C>(x), inner::<B, C>(d_y));
        outer::<B, C>(B::activate_backward(x, d_y, nonlinearity))
    }

    fn gated_backward(
        gate: FloatTensor<Self>,
        x: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        nonlinearity: Nonlinearity,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let [gate, x, d_y] = [gate, x, d_y].map(inner::<B, C>);
        let (d_gate, d_x) = B::gated_backward(gate, x, d_y, nonlinearity);
        (outer::<B, C>(d_gate), outer::<B, C>(d_x))
    }
}
