//! Differentiation: one node with two outputs; the backward pass saves the inputs.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend};
use burn_autodiff::NodeId;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};
use riverrun_kernels::matrix_state::Problem;

use super::backend::{MatrixGradients, MatrixInputs, MatrixStateOps};
use crate::ops::support::Maybe;
use crate::ops::support::autodiff::{Slot, inner, node_or, outer, output, register};

/// Parents: `q`, `k`, `v`, `g`, `β`, the two vectors of an erase, the bonus, the initial state; `v` again stands for an absent one.
#[derive(Debug)]
struct Recurrence;

#[derive(Debug, Clone)]
struct Saved<B: Backend> {
    /// Checkpointed: `q`, `k`, `v`.
    vectors: [NodeId; 3],
    /// The others.
    rest: [Maybe<B>; 7],
    problem: Problem,
    d_o: Slot<B>,
    d_last: Slot<B>,
}

impl<B: MatrixStateOps> Backward<B, 9> for Recurrence {
    type State = Saved<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 9>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let saved = ops.state;
        let [q, k, v] = saved
            .vectors
            .map(|id| checkpointer.retrieve_node_output::<FloatTensor<B>>(id));
        let d_o = saved.d_o.take_or_zeros(&v);
        let d_last = Maybe::from_option(saved.d_last.take());
        let [g, beta, erase, write, bonus, initial, reset] = saved.rest;
        let started = matches!(initial, Maybe::Some(_));
        let inputs = MatrixInputs {
            q,
            k,
            v,
            g,
            beta,
            erase,
            write,
            bonus,
            initial,
            reset,
        };
        let d = B::matrix_state_backward(inputs, d_o, d_last, saved.problem);
        let gradients = [
            Some(d.q),
            Some(d.k),
            Some(d.v),
            d.g.into_option(),
            d.beta.into_option(),
            d.erase.into_option(),
            d.write.into_option(),
            d.bonus.into_option(),
            started.then_some(d.initial),
        ];
        let parents = ops.parents.map(|parent| parent.map(|parent| parent.id));
        register::<B, 9>(parents, gradients, grads);
    }
}

impl<B: MatrixStateOps, C: CheckpointStrategy> MatrixStateOps for Autodiff<B, C> {
    fn matrix_state(
        inputs: MatrixInputs<Self>,
        problem: Problem,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (q, k, v) = (inputs.q.clone(), inputs.k.clone(), inputs.v.clone());
        let nodes = [
            q.node(),
            k.node(),
            v.node(),
            node_or(&inputs.g, &v),
            node_or(&inputs.beta, &v),
            node_or(&inputs.erase, &v),
            node_or(&inputs.write, &v),
            node_or(&inputs.bonus, &v),
            node_or(&inputs.initial, &v),
        ];
        let inputs: MatrixInputs<B> = inputs.map(inner::<B, C>);
        let rest = [
            &inputs.g,
            &inputs.beta,
            &inputs.erase,
            &inputs.write,
            &inputs.bonus,
            &inputs.initial,
            &inputs.reset,
        ]
        .map(Clone::clone);
        let (o, last) = B::matrix_state(inputs, problem);
        let (d_o, d_last) = (Slot::<B>::default(), Slot::<B>::default());
        let prep = Backward::<B, 9>::prepare::<C>(Recurrence, nodes).compute_bound();
        let core = match prep.stateful() {
            OpsKind::Tracked(mut prep) => {
                let saved = Saved {
                    vectors: [&q, &k, &v].map(|input| prep.checkpoint(input)),
                    rest,
                    problem,
                    d_o: d_o.clone(),
                    d_last: d_last.clone(),
                };
                prep.finish(saved, o.clone())
            }
            OpsKind::UnTracked(prep) => prep.finish(o.clone()),
        };
        let o = output::<B, C>(&core, o, d_o);
        (o, output::<B, C>(&core, last, d_last))
    }

    fn matrix_state_backward(
        inputs: MatrixInputs<Self>,
        d_o: FloatTensor<Self>,
        d_last: Maybe<Self>,
        problem: Problem,
    ) -> MatrixGradients<Self> {
        let (d_o, d_last) = (inner::<B, C>(d_o), d_last.map(inner::<B, C>));
        B::matrix_state_backward(inputs.map(inner::<B, C>), d_o, d_last, problem).map(outer::<B, C>)
    }
}
