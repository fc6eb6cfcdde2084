//! Differentiation: one node with two outputs, `y` and the state after the last step.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend};
use burn_autodiff::NodeId;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};

use super::{ConvolutionGradients, ShortConvolutionOps};
use crate::ops::support::Maybe;
use crate::ops::support::autodiff::{Slot, inner, node_or, outer, output, register};

/// Parents: `x`, `weight`, `bias`, `state`; `x` again stands for an absent one.
#[derive(Debug)]
struct Convolution;

#[derive(Debug, Clone)]
struct Saved<B: Backend> {
    /// Checkpointed: `x`, `weight`.
    inputs: [NodeId; 2],
    bias: bool,
    state: Maybe<B>,
    reset: Maybe<B>,
    d_y: Slot<B>,
    d_last: Slot<B>,
}

impl<B: ShortConvolutionOps> Backward<B, 4> for Convolution {
    type State = Saved<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 4>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let saved = ops.state;
        let [x, weight] = saved
            .inputs
            .map(|id| checkpointer.retrieve_node_output::<FloatTensor<B>>(id));
        let d_y = saved.d_y.take_or_zeros(&x);
        let d_last = Maybe::from_option(saved.d_last.take());
        let started = matches!(saved.state, Maybe::Some(_));
        let d = B::short_convolution_backward(x, weight, saved.state, saved.reset, d_y, d_last);
        let gradients = [
            Some(d.x),
            Some(d.weight),
            saved.bias.then_some(d.bias),
            started.then_some(d.state),
        ];
        let parents = ops.parents.map(|parent| parent.map(|parent| parent.id));
        register::<B, 4>(parents, gradients, grads);
    }
}

impl<B: ShortConvolutionOps, C: CheckpointStrategy> ShortConvolutionOps for Autodiff<B, C> {
    fn short_convolution(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Maybe<Self>,
        state: Maybe<Self>,
        reset: Maybe<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let nodes = [
            x.node(),
            weight.node(),
            node_or(&bias, &x),
            node_or(&state, &x),
        ];
        let biased = matches!(bias, Maybe::Some(_));
        let (state, reset) = (state.map(inner::<B, C>), reset.map(inner::<B, C>));
        let (y, last) = B::short_convolution(
            inner::<B, C>(x.clone()),
            inner::<B, C>(weight.clone()),
            bias.map(inner::<B, C>),
            state.clone(),
            reset.clone(),
        );
        let (d_y, d_last) = (Slot::<B>::default(), Slot::<B>::default());
        let prep = Backward::<B, 4>::prepare::<C>(Convolution, nodes).compute_bound();
        let core = match prep.stateful() {
            OpsKind::Tracked(mut prep) => {
                let saved = Saved {
                    inputs: [&x, &weight].map(|input| prep.checkpoint(input)),
                    bias: biased,
                    state,
                    reset,
                    d_y: d_y.clone(),
                    d_last: d_last.clone(),
                };
                prep.finish(saved, y.clone())
            }
            OpsKind::UnTracked(prep) => prep.finish(y.clone()),
        };
        let y = output::<B, C>(&core, y, d_y);
        (y, output::<B, C>(&core, last, d_last))
    }

    fn short_convolution_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        state: Maybe<Self>,
        reset: Maybe<Self>,
        d_y: FloatTensor<Self>,
        d_last: Maybe<Self>,
    ) -> ConvolutionGradients<Self> {
        B::short_convolution_backward(
            inner::<B, C>(x),
            inner::<B, C>(weight),
            state.map(inner::<B, C>),
            reset.map(inner::<B, C>),
            inner::<B, C>(d_y),
            d_last.map(inner::<B, C>),
        )
        .map(outer::<B, C>)
    }
}
