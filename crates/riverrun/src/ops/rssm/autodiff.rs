//! Differentiation: the backward passes save the inputs.

use burn::backend::Autodiff;
use burn::backend::tensor::FloatTensor;
use burn_autodiff::NodeId;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};

use super::RssmOps;
use crate::ops::support::autodiff::{inner, outer, register};

#[derive(Debug)]
struct ActivateBlocks;

impl<B: RssmOps> Backward<B, 1> for ActivateBlocks {
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
            grads.register::<B>(parent.id, B::activate_blocks_backward(x, d_y));
        }
    }
}

#[derive(Debug)]
struct GatedStep;

impl<B: RssmOps> Backward<B, 2> for GatedStep {
    type State = [NodeId; 2];

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let d_next = grads.consume::<B>(&ops.node);
        let [gates, before] = ops
            .state
            .map(|node| checkpointer.retrieve_node_output::<FloatTensor<B>>(node));
        let (d_gates, d_before) = B::gated_step_backward(gates, before, d_next);
        let parents = ops.parents.map(|parent| parent.map(|parent| parent.id));
        register::<B, 2>(parents, [Some(d_gates), Some(d_before)], grads);
    }
}

#[derive(Debug)]
struct DrawOneHot;

impl<B: RssmOps> Backward<B, 1> for DrawOneHot {
    type State = (NodeId, usize, f64);

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let d_sample = grads.consume::<B>(&ops.node);
        let (logits, classes, unimix) = ops.state;
        let logits = checkpointer.retrieve_node_output::<FloatTensor<B>>(logits);
        if let [Some(parent)] = ops.parents {
            let d_logits = B::draw_one_hot_backward(logits, d_sample, classes, unimix);
            grads.register::<B>(parent.id, d_logits);
        }
    }
}

impl<B: RssmOps, C: CheckpointStrategy> RssmOps for Autodiff<B, C> {
    fn activate_blocks(x: FloatTensor<Self>, blocks: usize) -> FloatTensor<Self> {
        let prep = Backward::<B, 1>::prepare::<C>(ActivateBlocks, [x.node()]).compute_bound();
        match prep.stateful() {
            OpsKind::Tracked(mut prep) => {
                let saved = prep.checkpoint(&x);
                prep.finish(saved, B::activate_blocks(x.into_primitive(), blocks))
            }
            OpsKind::UnTracked(prep) => prep.finish(B::activate_blocks(x.into_primitive(), blocks)),
        }
    }

    fn activate_blocks_backward(x: FloatTensor<Self>, d_y: FloatTensor<Self>) -> FloatTensor<Self> {
        let [x, d_y] = [x, d_y].map(inner::<B, C>);
        outer::<B, C>(B::activate_blocks_backward(x, d_y))
    }

    fn gated_step(gates: FloatTensor<Self>, before: FloatTensor<Self>) -> FloatTensor<Self> {
        let nodes = [gates.node(), before.node()];
        let prep = Backward::<B, 2>::prepare::<C>(GatedStep, nodes).compute_bound();
        match prep.stateful() {
            OpsKind::Tracked(mut prep) => {
                let saved = [prep.checkpoint(&gates), prep.checkpoint(&before)];
                let next = B::gated_step(gates.into_primitive(), before.into_primitive());
                prep.finish(saved, next)
            }
            OpsKind::UnTracked(prep) => prep.finish(B::gated_step(
                gates.into_primitive(),
                before.into_primitive(),
            )),
        }
    }

    fn gated_step_backward(
        gates: FloatTensor<Self>,
        before: FloatTensor<Self>,
        d_next: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let [gates, before, d_next] = [gates, before, d_next].map(inner::<B, C>);
        let (d_gates, d_before) = B::gated_step_backward(gates, before, d_next);
        (outer::<B, C>(d_gates), outer::<B, C>(d_before))
    }

    fn draw_one_hot(
        logits: FloatTensor<Self>,
        noise: FloatTensor<Self>,
        step: usize,
        classes: usize,
        unimix: f64,
    ) -> FloatTensor<Self> {
        let noise = noise.into_primitive();
        let prep = Backward::<B, 1>::prepare::<C>(DrawOneHot, [logits.node()]).compute_bound();
        match prep.stateful() {
            OpsKind::Tracked(mut prep) => {
                let saved = prep.checkpoint(&logits);
                let logits = logits.into_primitive();
                let sample = B::draw_one_hot(logits, noise, step, classes, unimix);
                prep.finish((saved, classes, unimix), sample)
            }
            OpsKind::UnTracked(prep) => prep.finish(B::draw_one_hot(
                logits.into_primitive(),
                noise,
                step,
                classes,
                unimix,
            )),
        }
    }

    fn draw_one_hot_backward(
        logits: FloatTensor<Self>,
        d_sample: FloatTensor<Self>,
        classes: usize,
        unimix: f64,
    ) -> FloatTensor<Self> {
        let [logits, d_sample] = [logits, d_sample].map(inner::<B, C>);
        outer::<B, C>(B::draw_one_hot_backward(logits, d_sample, classes, unimix))
    }
}
