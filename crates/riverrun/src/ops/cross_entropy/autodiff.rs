//! Differentiation: the backward pass saves the logits and one number a row.

use burn::backend::Autodiff;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn_autodiff::NodeId;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};

use super::LossOps;
use crate::ops::support::autodiff::{inner, outer};

#[derive(Debug)]
struct CrossEntropy;

impl<B: LossOps> Backward<B, 1> for CrossEntropy {
    type State = (NodeId, IntTensor<B>, FloatTensor<B>, FloatTensor<B>);

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let d_loss = grads.consume::<B>(&ops.node);
        let (x, targets, lse, weight) = ops.state;
        let x = checkpointer.retrieve_node_output::<FloatTensor<B>>(x);
        if let [Some(parent)] = ops.parents {
            let d_x = B::cross_entropy_backward(x, targets, lse, weight, d_loss);
            grads.register::<B>(parent.id, d_x);
        }
    }
}

impl<B: LossOps, C: CheckpointStrategy> LossOps for Autodiff<B, C> {
    fn cross_entropy(
        x: FloatTensor<Self>,
        targets: IntTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let (loss, lse, weight) = B::cross_entropy(x.clone().into_primitive(), targets.clone());
        let saved = (outer::<B, C>(lse.clone()), outer::<B, C>(weight.clone()));
        let prep = Backward::<B, 1>::prepare::<C>(CrossEntropy, [x.node()]).compute_bound();
        let loss = match prep.stateful() {
            OpsKind::Tracked(mut prep) => {
                let x = prep.checkpoint(&x);
                prep.finish((x, targets, lse, weight), loss)
            }
            OpsKind::UnTracked(prep) => prep.finish(loss),
        };
        (loss, saved.0, saved.1)
    }

    fn cross_entropy_backward(
        x: FloatTensor<Self>,
        targets: IntTensor<Self>,
        lse: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        d_loss: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let [x, lse, weight, d_loss] = [x, lse, weight, d_loss].map(inner::<B, C>);
        outer::<B, C>(B::cross_entropy_backward(x, targets, lse, weight, d_loss))
    }
}
