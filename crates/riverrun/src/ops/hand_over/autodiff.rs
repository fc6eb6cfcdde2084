//! Differentiation: the gradient of a received state goes back, and that of a sent one is waited for.
//!
//! Nodes run by their depth in the graph, the deepest first. So that gradients go back as soon as they are there, and in the
//! reverse order of the states, a received state hangs below an input of its recurrence, to which no gradient goes.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, TensorMetadata};
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};

use super::{Direction, HandOver, HandOverOps};
use crate::ops::support::autodiff::{inner, outer, register};

/// Parents: an input of the recurrence, and a leaf that lets the node be differentiated whatever the input is. Neither has a gradient
/// from here.
#[derive(Debug)]
struct Received;

impl<B: HandOverOps> Backward<B, 2> for Received {
    type State = HandOver;

    fn backward(
        self,
        ops: Ops<HandOver, 2>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let gradient = grads.consume::<B>(&ops.node);
        ops.state.send::<B>(Direction::Backward, gradient, false);
    }
}

/// Parents: the output, and the last state.
#[derive(Debug)]
struct Sent;

impl<B: HandOverOps> Backward<B, 2> for Sent {
    type State = HandOver;

    fn backward(
        self,
        ops: Ops<HandOver, 2>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let d_y = grads.consume::<B>(&ops.node);
        let (d_last, _) = ops.state.receive::<B>(Direction::Backward, &d_y.device());
        let parents = ops.parents.map(|parent| parent.map(|parent| parent.id));
        register::<B, 2>(parents, [Some(d_y), Some(d_last)], grads);
    }
}

impl<B: HandOverOps, C: CheckpointStrategy> HandOverOps for Autodiff<B, C> {
    fn receive_state(input: FloatTensor<Self>, point: HandOver) -> FloatTensor<Self> {
        let (state, answer) = point.receive::<B>(Direction::Forward, &input.device());
        let leaf = outer::<B, C>(state.clone());
        if !answer {
            return leaf;
        }
        let nodes = [input.node(), leaf.require_grad().node()];
        let prep = Backward::<B, 2>::prepare::<C>(Received, nodes).compute_bound();
        match prep.stateful() {
            OpsKind::Tracked(prep) => prep.finish(point, state),
            OpsKind::UnTracked(prep) => prep.finish(state),
        }
    }

    fn send_state(
        y: FloatTensor<Self>,
        last: FloatTensor<Self>,
        point: HandOver,
    ) -> FloatTensor<Self> {
        let prep = Backward::<B, 2>::prepare::<C>(Sent, [y.node(), last.node()]).compute_bound();
        let (y, last) = (inner::<B, C>(y), inner::<B, C>(last));
        match prep.stateful() {
            OpsKind::Tracked(prep) => {
                point.send::<B>(Direction::Forward, last, true);
                prep.finish(point, y)
            }
            OpsKind::UnTracked(prep) => {
                point.send::<B>(Direction::Forward, last, false);
                prep.finish(y)
            }
        }
    }
}
