//! Differentiation: one node with several outputs, the parts of `y` and the state after the last step.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, TensorMetadata};
use burn_autodiff::NodeId;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};

use super::{ConvolutionGradients, ConvolutionParts, ShortConvolutionOps, part_dims};
use crate::ops::support::Maybe;
use crate::ops::support::autodiff::{Slot, Tracked, inner, node_or, outer, output, register};

/// Parents: `x`, `weight`, `bias`, `state`; `x` again stands for an absent one.
#[derive(Debug)]
struct Convolution;

#[derive(Debug, Clone)]
struct Saved<B: Backend> {
    /// Checkpointed: `x`, `weight`.
    inputs: [NodeId; 2],
    bias: Maybe<B>,
    state: Maybe<B>,
    reset: Maybe<B>,
    /// One of a convolution alone, three of its SiLU.
    d_y: Vec<Slot<B>>,
    /// Channels of the three.
    widths: [usize; 3],
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
        let Saved {
            inputs,
            bias,
            state,
            reset,
            d_y,
            widths,
            d_last,
        } = ops.state;
        let [x, weight] = inputs.map(|id| checkpointer.retrieve_node_output::<FloatTensor<B>>(id));
        let d_last = Maybe::from_option(d_last.take());
        let (biased, started) = (
            matches!(bias, Maybe::Some(_)),
            matches!(state, Maybe::Some(_)),
        );
        let d = match &d_y[..] {
            [first, second, third] => {
                let zeros = |width| {
                    let shape = part_dims(&x.shape(), width);
                    B::float_zeros(shape, &x.device(), x.dtype().into())
                };
                let [first, second, third] = [(first, 0), (second, 1), (third, 2)]
                    .map(|(slot, i)| slot.take().unwrap_or_else(|| zeros(widths[i])));
                B::short_convolution_silu_backward(
                    x, weight, bias, state, reset, first, second, third, d_last,
                )
            }
            alone => {
                let d_y = alone[0].take_or_zeros(&x);
                B::short_convolution_backward(x, weight, state, reset, d_y, d_last)
            }
        };
        let gradients = [
            Some(d.x),
            Some(d.weight),
            biased.then_some(d.bias),
            started.then_some(d.state),
        ];
        let parents = ops.parents.map(|parent| parent.map(|parent| parent.id));
        register::<B, 4>(parents, gradients, grads);
    }
}

/// The inputs of a convolution, without their nodes, and its node to be.
struct Call<'a, B: Backend, C: CheckpointStrategy> {
    x: &'a Tracked<B, C>,
    weight: &'a Tracked<B, C>,
    bias: &'a Maybe<Autodiff<B, C>>,
    state: &'a Maybe<Autodiff<B, C>>,
    reset: &'a Maybe<B>,
    widths: [usize; 3],
}

impl<B: ShortConvolutionOps, C: CheckpointStrategy> Call<'_, B, C> {
    /// The outputs, the state last, as those of the node.
    fn outputs(self, mut y: Vec<FloatTensor<B>>, last: FloatTensor<B>) -> Vec<Tracked<B, C>> {
        let Call { x, weight, .. } = self;
        let nodes = [
            x.node(),
            weight.node(),
            node_or(self.bias, x),
            node_or(self.state, x),
        ];
        let prep = Backward::<B, 4>::prepare::<C>(Convolution, nodes).compute_bound();
        let d_y: Vec<Slot<B>> = y.iter().map(|_| Slot::default()).collect();
        let d_last = Slot::<B>::default();
        let core = match prep.stateful() {
            OpsKind::Tracked(mut prep) => {
                let saved = Saved {
                    inputs: [x, weight].map(|input| prep.checkpoint(input)),
                    bias: self.bias.clone().map(inner::<B, C>),
                    state: self.state.clone().map(inner::<B, C>),
                    reset: self.reset.clone(),
                    d_y: d_y.clone(),
                    widths: self.widths,
                    d_last: d_last.clone(),
                };
                prep.finish(saved, y[0].clone())
            }
            OpsKind::UnTracked(prep) => prep.finish(y[0].clone()),
        };
        y.push(last);
        let slots = d_y.into_iter().chain([d_last]);
        let all = y.into_iter().zip(slots);
        all.map(|(y, slot)| output::<B, C>(&core, y, slot))
            .collect()
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
        let reset = reset.map(inner::<B, C>);
        let (y, last) = B::short_convolution(
            inner::<B, C>(x.clone()),
            inner::<B, C>(weight.clone()),
            bias.clone().map(inner::<B, C>),
            state.clone().map(inner::<B, C>),
            reset.clone(),
        );
        let call = Call {
            x: &x,
            weight: &weight,
            bias: &bias,
            state: &state,
            reset: &reset,
            widths: [0; 3],
        };
        let mut all = call.outputs(vec![y], last);
        let last = all.pop().expect("the state is the last output");
        (all.remove(0), last)
    }

    fn short_convolution_silu(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Maybe<Self>,
        state: Maybe<Self>,
        reset: Maybe<Self>,
        widths: [usize; 3],
    ) -> ConvolutionParts<Self> {
        let reset = reset.map(inner::<B, C>);
        let parts = B::short_convolution_silu(
            inner::<B, C>(x.clone()),
            inner::<B, C>(weight.clone()),
            bias.clone().map(inner::<B, C>),
            state.clone().map(inner::<B, C>),
            reset.clone(),
            widths,
        );
        let call = Call {
            x: &x,
            weight: &weight,
            bias: &bias,
            state: &state,
            reset: &reset,
            widths,
        };
        let y = vec![parts.first, parts.second, parts.third];
        let mut all = call.outputs(y, parts.last);
        let last = all.pop().expect("the state is the last output");
        ConvolutionParts::from_parts(all, last)
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

    fn short_convolution_silu_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Maybe<Self>,
        state: Maybe<Self>,
        reset: Maybe<Self>,
        d_first: FloatTensor<Self>,
        d_second: FloatTensor<Self>,
        d_third: FloatTensor<Self>,
        d_last: Maybe<Self>,
    ) -> ConvolutionGradients<Self> {
        B::short_convolution_silu_backward(
            inner::<B, C>(x),
            inner::<B, C>(weight),
            bias.map(inner::<B, C>),
            state.map(inner::<B, C>),
            reset.map(inner::<B, C>),
            inner::<B, C>(d_first),
            inner::<B, C>(d_second),
            inner::<B, C>(d_third),
            d_last.map(inner::<B, C>),
        )
        .map(outer::<B, C>)
    }
}
