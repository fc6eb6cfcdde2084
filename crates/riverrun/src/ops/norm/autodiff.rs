//! Differentiation. With a residual the operation is one node with two outputs, the norm and the sum, so the backward pass adds
//! the gradient of the sum where it computes that of the norm, in the same pass over memory.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, TensorMetadata};
use burn_autodiff::NodeId;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};

use super::{NormGradients, NormOps, NormSpec};
use crate::ops::support::Maybe;
use crate::ops::support::autodiff::{Slot, inner, node_or, outer, output, register};

/// Parents: `x`, `gamma`, `beta`; `x` again stands for an absent `beta`.
#[derive(Debug)]
struct Norm;

#[derive(Debug, Clone)]
struct NormSaved {
    x: NodeId,
    gamma: NodeId,
    offset: bool,
    spec: NormSpec,
}

impl<B: NormOps> Backward<B, 3> for Norm {
    type State = NormSaved;

    fn backward(
        self,
        ops: Ops<Self::State, 3>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let d_y = grads.consume::<B>(&ops.node);
        let saved = ops.state;
        let [x, gamma] = [saved.x, saved.gamma]
            .map(|id| checkpointer.retrieve_node_output::<FloatTensor<B>>(id));
        let d = B::norm_backward(x, gamma, d_y, Maybe::None, saved.offset, saved.spec);
        let parents = ops.parents.map(|parent| parent.map(|parent| parent.id));
        let gradients = [Some(d.x), Some(d.gamma), d.beta.into_option()];
        register::<B, 3>(parents, gradients, grads);
    }
}

/// Parents: `x`, `residual`, `gamma`, `beta`; `x` again stands for an absent `beta`.
#[derive(Debug)]
struct AddNorm;

#[derive(Debug, Clone)]
struct AddNormSaved<B: Backend> {
    sum: FloatTensor<B>,
    gamma: NodeId,
    d_y: Slot<B>,
    d_sum: Slot<B>,
    offset: bool,
    spec: NormSpec,
}

impl<B: NormOps> Backward<B, 4> for AddNorm {
    type State = AddNormSaved<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 4>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let saved = ops.state;
        let gamma = checkpointer.retrieve_node_output::<FloatTensor<B>>(saved.gamma);
        let d_sum = saved.d_sum.take();
        let d = match (saved.d_y.take(), d_sum) {
            (Some(d_y), d_sum) => {
                let d_sum = Maybe::from_option(d_sum);
                B::norm_backward(saved.sum, gamma, d_y, d_sum, saved.offset, saved.spec)
            }
            (None, Some(d_sum)) => {
                let zeros = || B::float_zeros(gamma.shape(), &gamma.device(), gamma.dtype().into());
                NormGradients {
                    x: d_sum,
                    gamma: zeros(),
                    beta: Maybe::from_option(saved.offset.then(zeros)),
                }
            }
            // Neither output has a gradient: no loss depends on this node, and it does not run.
            (None, None) => return,
        };
        let parents = ops.parents.map(|parent| parent.map(|parent| parent.id));
        let gradients = [
            Some(d.x.clone()),
            Some(d.x),
            Some(d.gamma),
            d.beta.into_option(),
        ];
        register::<B, 4>(parents, gradients, grads);
    }
}

impl<B: NormOps, C: CheckpointStrategy> NormOps for Autodiff<B, C> {
    fn norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: Maybe<Self>,
        spec: NormSpec,
    ) -> FloatTensor<Self> {
        let nodes = [x.node(), gamma.node(), node_or(&beta, &x)];
        let offset = matches!(beta, Maybe::Some(_));
        let y = B::norm(
            inner::<B, C>(x.clone()),
            inner::<B, C>(gamma.clone()),
            beta.map(inner::<B, C>),
            spec,
        );
        let prep = Backward::<B, 3>::prepare::<C>(Norm, nodes).compute_bound();
        match prep.stateful() {
            OpsKind::Tracked(mut prep) => {
                let saved = NormSaved {
                    x: prep.checkpoint(&x),
                    gamma: prep.checkpoint(&gamma),
                    offset,
                    spec,
                };
                prep.finish(saved, y)
            }
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }

    fn add_norm(
        x: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: Maybe<Self>,
        spec: NormSpec,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let nodes = [x.node(), residual.node(), gamma.node(), node_or(&beta, &x)];
        let offset = matches!(beta, Maybe::Some(_));
        let (y, sum) = B::add_norm(
            inner::<B, C>(x),
            inner::<B, C>(residual),
            inner::<B, C>(gamma.clone()),
            beta.map(inner::<B, C>),
            spec,
        );
        let (d_y, d_sum) = (Slot::<B>::default(), Slot::<B>::default());
        let prep = Backward::<B, 4>::prepare::<C>(AddNorm, nodes).compute_bound();
        let core = match prep.stateful() {
            OpsKind::Tracked(mut prep) => {
                let saved = AddNormSaved {
                    sum: sum.clone(),
                    gamma: prep.checkpoint(&gamma),
                    d_y: d_y.clone(),
                    d_sum: d_sum.clone(),
                    offset,
                    spec,
                };
                prep.finish(saved, sum.clone())
            }
            OpsKind::UnTracked(prep) => prep.finish(sum.clone()),
        };
        let y = output::<B, C>(&core, y, d_y);
        (y, output::<B, C>(&core, sum, d_sum))
    }

    fn norm_backward(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        d_sum: Maybe<Self>,
        offset: bool,
        spec: NormSpec,
    ) -> NormGradients<Self> {
        let (x, gamma, d_y) = (inner::<B, C>(x), inner::<B, C>(gamma), inner::<B, C>(d_y));
        B::norm_backward(x, gamma, d_y, d_sum.map(inner::<B, C>), offset, spec).map(outer::<B, C>)
    }
}
