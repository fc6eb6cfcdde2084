//! Differentiation: the backward pass saves the inputs.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend};
use burn_autodiff::NodeId;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};

use super::{GateGradients, GateInputs, RgLruOps, RgLruProblem};
use crate::ops::support::Maybe;
use crate::ops::support::autodiff::{inner, node_or, outer, register};

/// Parents: `p`, `q`, `x`, `bias`, `rate`; `x` again stands for an absent bias.
#[derive(Debug)]
struct Gates;

#[derive(Debug, Clone)]
struct Saved<B: Backend> {
    /// Checkpointed: `p`, `q`, `x`.
    inputs: [NodeId; 3],
    bias: Maybe<B>,
    rate: FloatTensor<B>,
    reset: Maybe<B>,
    problem: RgLruProblem,
}

impl<B: RgLruOps> Backward<B, 5> for Gates {
    type State = Saved<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 5>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let saved = ops.state;
        let [p, q, x] = saved
            .inputs
            .map(|id| checkpointer.retrieve_node_output::<FloatTensor<B>>(id));
        let biased = matches!(saved.bias, Maybe::Some(_));
        let inputs = GateInputs {
            p,
            q,
            x,
            bias: saved.bias,
            rate: saved.rate,
            reset: saved.reset,
        };
        let d_gates = grads.consume::<B>(&ops.node);
        let d = B::rg_lru_gates_backward(inputs, d_gates, saved.problem);
        let gradients = [
            Some(d.p),
            Some(d.q),
            Some(d.x),
            biased.then_some(d.bias),
            Some(d.rate),
        ];
        let parents = ops.parents.map(|parent| parent.map(|parent| parent.id));
        register::<B, 5>(parents, gradients, grads);
    }
}

impl<B: RgLruOps, C: CheckpointStrategy> RgLruOps for Autodiff<B, C> {
    fn rg_lru_gates(inputs: GateInputs<Self>, problem: RgLruProblem) -> FloatTensor<Self> {
        let nodes = [
            inputs.p.node(),
            inputs.q.node(),
            inputs.x.node(),
            node_or(&inputs.bias, &inputs.x),
            inputs.rate.node(),
        ];
        let prep = Backward::<B, 5>::prepare::<C>(Gates, nodes).compute_bound();
        match prep.stateful() {
            OpsKind::Tracked(mut prep) => {
                let saved = [&inputs.p, &inputs.q, &inputs.x].map(|input| prep.checkpoint(input));
                let inputs: GateInputs<B> = inputs.map(inner::<B, C>);
                let saved = Saved {
                    inputs: saved,
                    bias: inputs.bias.clone(),
                    rate: inputs.rate.clone(),
                    reset: inputs.reset.clone(),
                    problem,
                };
                prep.finish(saved, B::rg_lru_gates(inputs, problem))
            }
            OpsKind::UnTracked(prep) => {
                prep.finish(B::rg_lru_gates(inputs.map(inner::<B, C>), problem))
            }
        }
    }

    fn rg_lru_gates_backward(
        inputs: GateInputs<Self>,
        d: FloatTensor<Self>,
        problem: RgLruProblem,
    ) -> GateGradients<Self> {
        let inputs = inputs.map(inner::<B, C>);
        B::rg_lru_gates_backward(inputs, inner::<B, C>(d), problem).map(outer::<B, C>)
    }
}
