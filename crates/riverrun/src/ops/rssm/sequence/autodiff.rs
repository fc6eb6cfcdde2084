//! Differentiation: one node, whose parents are the values of the layers.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend};
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};
use riverrun_kernels::rssm::sequence::Problem;

use super::{RssmCuts, RssmInputs, RssmSaved, RssmSequenceOps, RssmWeights};
use crate::ops::support::autodiff::{inner, outer, register};

/// The backward step. Parents: the fields of [`RssmCuts`] in their order.
#[derive(Debug)]
struct States;

#[derive(Debug, Clone)]
struct Kept<B: Backend> {
    states: FloatTensor<B>,
    saved: RssmSaved<B>,
    weights: RssmWeights<B>,
    problem: Problem,
    one_launch: bool,
}

impl<B: RssmSequenceOps> Backward<B, 8> for States {
    type State = Kept<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 8>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let d_states = grads.consume::<B>(&ops.node);
        let Kept {
            states,
            saved,
            weights,
            problem,
            one_launch,
        } = ops.state;
        let found = B::rssm_states_backward(states, d_states, saved, weights, problem, one_launch);
        let gradients = [
            found.deter,
            found.stoch,
            found.hidden,
            found.gates,
            found.posterior,
            found.logits,
            found.d0,
            found.s0,
        ];
        let parents = ops.parents.map(|parent| parent.map(|parent| parent.id));
        register::<B, 8>(parents, gradients.map(Some), grads);
    }
}

impl<B: RssmSequenceOps, C: CheckpointStrategy> RssmSequenceOps for Autodiff<B, C> {
    fn rssm_sequence(
        inputs: RssmInputs<Self>,
        weights: RssmWeights<Self>,
        problem: Problem,
    ) -> FloatTensor<Self> {
        let (inputs, weights) = (inputs.map(inner::<B, C>), weights.map(inner::<B, C>));
        outer::<B, C>(B::rssm_sequence(inputs, weights, problem))
    }

    fn rssm_states(
        states: FloatTensor<Self>,
        cuts: RssmCuts<Self>,
        saved: RssmSaved<Self>,
        weights: RssmWeights<Self>,
        problem: Problem,
        one_launch: bool,
    ) -> FloatTensor<Self> {
        let nodes = [
            &cuts.deter,
            &cuts.stoch,
            &cuts.hidden,
            &cuts.gates,
            &cuts.posterior,
            &cuts.logits,
            &cuts.d0,
            &cuts.s0,
        ]
        .map(|cut| cut.node());
        let states = inner::<B, C>(states);
        let prep = Backward::<B, 8>::prepare::<C>(States, nodes).compute_bound();
        match prep.stateful() {
            OpsKind::Tracked(prep) => {
                let kept = Kept {
                    states: states.clone(),
                    saved: saved.map(inner::<B, C>),
                    weights: weights.map(inner::<B, C>),
                    problem,
                    one_launch,
                };
                prep.finish(kept, states)
            }
            OpsKind::UnTracked(prep) => prep.finish(states),
        }
    }
}
