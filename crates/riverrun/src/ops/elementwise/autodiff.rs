//! Differentiation: both operations keep their inputs.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, AutodiffBackend};
use burn_autodiff::NodeId;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};

use super::ElementwiseOps;

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

#[derive(Debug)]
struct RmsNorm;

impl<B: ElementwiseOps> Backward<B, 2> for RmsNorm {
    type State = (NodeId, NodeId, f64);

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let d_y = grads.consume::<B>(&ops.node);
        let (x, gamma, epsilon) = ops.state;
        let x = checkpointer.retrieve_node_output::<FloatTensor<B>>(x);
        let gamma = checkpointer.retrieve_node_output::<FloatTensor<B>>(gamma);
        let (d_x, d_gamma) = B::rms_norm_backward(x, gamma, d_y, epsilon);
        for (parent, gradient) in ops.parents.into_iter().zip([d_x, d_gamma]) {
            if let Some(parent) = parent {
                grads.register::<B>(parent.id, gradient);
            }
        }
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

    fn gelu_tanh_backward(x: FloatTensor<Self>, d_y: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::from_inner(B::gelu_tanh_backward(
            x.into_primitive(),
            d_y.into_primitive(),
        ))
    }

    fn rms_norm(x: FloatTensor<Self>, gamma: FloatTensor<Self>, epsilon: f64) -> FloatTensor<Self> {
        let y = B::rms_norm(
            x.clone().into_primitive(),
            gamma.clone().into_primitive(),
            epsilon,
        );
        let nodes = [x.node(), gamma.node()];
        let prep = Backward::<B, 2>::prepare::<C>(RmsNorm, nodes).compute_bound();
        match prep.stateful() {
            OpsKind::Tracked(mut prep) => {
                let saved = (prep.checkpoint(&x), prep.checkpoint(&gamma), epsilon);
                prep.finish(saved, y)
            }
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }

    fn rms_norm_backward(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        epsilon: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (x, gamma, d_y) = (
            x.into_primitive(),
            gamma.into_primitive(),
            d_y.into_primitive(),
        );
        let (d_x, d_gamma) = B::rms_norm_backward(x, gamma, d_y, epsilon);
        (Self::from_inner(d_x), Self::from_inner(d_gamma))
    }
}
