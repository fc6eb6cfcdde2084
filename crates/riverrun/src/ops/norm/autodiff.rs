//! Differentiation: a norm keeps its inputs. With a residual it is two nodes, for the sum and for the norm of the sum, so
//! that either result may be used or not.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, AutodiffBackend};
use burn_autodiff::NodeId;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};

use super::{NormGradients, NormOps, NormSpec};
use crate::ops::support::Maybe;

#[derive(Debug)]
struct Norm;

/// Parents: `x`, `gamma`, and `beta` if there is one.
impl<B: NormOps, const N: usize> Backward<B, N> for Norm {
    type State = (NodeId, NodeId, NormSpec);

    fn backward(
        self,
        ops: Ops<Self::State, N>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let d_y = grads.consume::<B>(&ops.node);
        let (x, gamma, spec) = ops.state;
        let x = checkpointer.retrieve_node_output::<FloatTensor<B>>(x);
        let gamma = checkpointer.retrieve_node_output::<FloatTensor<B>>(gamma);
        let NormGradients { x, gamma, beta } = B::norm_backward(x, gamma, d_y, N == 3, spec);
        let gradients = [Some(x), Some(gamma), beta.into_option()];
        for (parent, gradient) in ops.parents.into_iter().zip(gradients) {
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                grads.register::<B>(parent.id, gradient);
            }
        }
    }
}

#[derive(Debug)]
struct Sum;

impl<B: NormOps> Backward<B, 2> for Sum {
    type State = ();

    fn backward(self, ops: Ops<(), 2>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let d_sum = grads.consume::<B>(&ops.node);
        for parent in ops.parents.into_iter().flatten() {
            grads.register::<B>(parent.id, d_sum.clone());
        }
    }
}

/// `y`, which has been computed, as a node that comes of `x`, `gamma` and `beta`.
macro_rules! track {
    ($nodes:expr, $x:expr, $gamma:expr, $spec:expr, $y:expr) => {
        match Backward::<B, _>::prepare::<C>(Norm, $nodes)
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(mut prep) => {
                let saved = (prep.checkpoint(&$x), prep.checkpoint(&$gamma), $spec);
                prep.finish(saved, $y)
            }
            OpsKind::UnTracked(prep) => prep.finish($y),
        }
    };
}

impl<B: NormOps, C: CheckpointStrategy> NormOps for Autodiff<B, C> {
    fn norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: Maybe<Self>,
        spec: NormSpec,
    ) -> FloatTensor<Self> {
        let beta = beta.into_option();
        let y = B::norm(
            x.clone().into_primitive(),
            gamma.clone().into_primitive(),
            Maybe::from_option(beta.clone().map(|beta| beta.into_primitive())),
            spec,
        );
        match beta {
            Some(beta) => track!([x.node(), gamma.node(), beta.node()], x, gamma, spec, y),
            None => track!([x.node(), gamma.node()], x, gamma, spec, y),
        }
    }

    fn add_norm(
        x: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: Maybe<Self>,
        spec: NormSpec,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let beta = beta.into_option();
        let nodes = [x.node(), residual.node()];
        let (y, sum) = B::add_norm(
            x.into_primitive(),
            residual.into_primitive(),
            gamma.clone().into_primitive(),
            Maybe::from_option(beta.clone().map(|beta| beta.into_primitive())),
            spec,
        );
        let sum = match Backward::<B, 2>::prepare::<C>(Sum, nodes)
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(prep) => prep.finish((), sum),
            OpsKind::UnTracked(prep) => prep.finish(sum),
        };
        let y = match beta {
            Some(beta) => track!([sum.node(), gamma.node(), beta.node()], sum, gamma, spec, y),
            None => track!([sum.node(), gamma.node()], sum, gamma, spec, y),
        };
        (y, sum)
    }

    fn norm_backward(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        offset: bool,
        spec: NormSpec,
    ) -> NormGradients<Self> {
        let NormGradients { x, gamma, beta } = B::norm_backward(
            x.into_primitive(),
            gamma.into_primitive(),
            d_y.into_primitive(),
            offset,
            spec,
        );
        NormGradients {
            x: Self::from_inner(x),
            gamma: Self::from_inner(gamma),
            beta: Maybe::from_option(beta.into_option().map(Self::from_inner)),
        }
    }
}
