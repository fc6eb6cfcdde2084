//! Differentiation: the states are one node, the last state follows it (see the recurrence's).

use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, TensorMetadata};
use burn_autodiff::NodeId;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, NodeGuard, Ops, OpsKind};

use super::{BlockDiagonalOps, BlockGradients};
use crate::ops::support::Maybe;
use crate::ops::support::autodiff::{Slot, Tracked, inner, outer, output};

/// The backward step; parents: `A`, `b`, then `h0` if there is one.
#[derive(Debug)]
struct States;

#[derive(Debug, Clone)]
struct Saved<B: Backend> {
    a: NodeId,
    h0: Option<FloatTensor<B>>,
    reset: Option<FloatTensor<B>>,
    h: FloatTensor<B>,
    d_h: Slot<B>,
    d_h_last: Slot<B>,
    reverse: bool,
}

impl<B: BlockDiagonalOps, const N: usize> Backward<B, N> for States {
    type State = Saved<B>;

    fn backward(
        self,
        ops: Ops<Self::State, N>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let saved = ops.state;
        let d_h = saved.d_h.take_or_zeros(&saved.h);
        let d = B::block_diagonal_backward(
            checkpointer.retrieve_node_output::<FloatTensor<B>>(saved.a),
            Maybe::from_option(saved.h0),
            Maybe::from_option(saved.reset),
            saved.h,
            d_h,
            Maybe::from_option(saved.d_h_last.take()),
            saved.reverse,
        );
        for (parent, gradient) in ops.parents.into_iter().zip([d.a, d.b, d.h0]) {
            if let Some(parent) = parent {
                grads.register::<B>(parent.id, gradient);
            }
        }
    }
}

/// Arguments of the operation without the graph nodes.
struct Inputs<B: BlockDiagonalOps, C: CheckpointStrategy> {
    a: Tracked<B, C>,
    b: Tracked<B, C>,
    h0: Option<FloatTensor<B>>,
    reset: Option<FloatTensor<B>>,
    reverse: bool,
}

fn run<B: BlockDiagonalOps, C: CheckpointStrategy, const N: usize>(
    guards: [NodeGuard; N],
    inputs: Inputs<B, C>,
) -> (Tracked<B, C>, Tracked<B, C>) {
    let Inputs {
        a,
        b,
        h0,
        reset,
        reverse,
    } = inputs;
    let (h, last) = B::block_diagonal(
        a.clone().into_primitive(),
        b.into_primitive(),
        Maybe::from_option(h0.clone()),
        Maybe::from_option(reset.clone()),
        reverse,
    );
    let (d_h, d_h_last) = (Slot::<B>::default(), Slot::<B>::default());
    let prep = Backward::<B, N>::prepare::<C>(States, guards).compute_bound();
    let core = match prep.stateful() {
        OpsKind::Tracked(mut prep) => {
            let saved = Saved {
                a: prep.checkpoint(&a),
                h0,
                reset,
                h: h.clone(),
                d_h: d_h.clone(),
                d_h_last: d_h_last.clone(),
                reverse,
            };
            prep.finish(saved, h.clone())
        }
        OpsKind::UnTracked(prep) => prep.finish(h.clone()),
    };
    let states = output::<B, C>(&core, h, d_h);
    let last = output::<B, C>(&core, last, d_h_last);
    (states, last)
}

impl<B: BlockDiagonalOps, C: CheckpointStrategy> BlockDiagonalOps for Autodiff<B, C> {
    fn block_diagonal(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        h0: Maybe<Self>,
        reset: Maybe<Self>,
        reverse: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let empty = b.shape()[1] == 0;
        let start = h0.into_option();
        let reset = reset.into_option().map(|reset| reset.into_primitive());
        let h0 = start.clone().map(|start| start.into_primitive());
        let guards = (a.node(), b.node());
        let inputs = Inputs::<B, C> {
            a,
            b,
            h0,
            reset,
            reverse,
        };
        let (h, last) = match &start {
            None => run::<B, C, 2>([guards.0, guards.1], inputs),
            Some(start) => run::<B, C, 3>([guards.0, guards.1, start.node()], inputs),
        };
        // After no steps the last state is the initial one, and so is its gradient.
        match start {
            Some(start) if empty => (h, start),
            _ => (h, last),
        }
    }

    fn block_diagonal_forward(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        h0: Maybe<Self>,
        reset: Maybe<Self>,
        reverse: bool,
    ) -> FloatTensor<Self> {
        Self::block_diagonal(a, b, h0, reset, reverse).0
    }

    fn block_diagonal_backward(
        a: FloatTensor<Self>,
        h0: Maybe<Self>,
        reset: Maybe<Self>,
        h: FloatTensor<Self>,
        d_h: FloatTensor<Self>,
        d_h_last: Maybe<Self>,
        reverse: bool,
    ) -> BlockGradients<Self> {
        B::block_diagonal_backward(
            inner::<B, C>(a),
            h0.map(inner::<B, C>),
            reset.map(inner::<B, C>),
            inner::<B, C>(h),
            inner::<B, C>(d_h),
            d_h_last.map(inner::<B, C>),
            reverse,
        )
        .map(outer::<B, C>)
    }
}
