//! Differentiation.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend};
use burn_autodiff::NodeId;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};
use riverrun_kernels::attention::Problem;

use super::{AttentionGradients, AttentionOps};
use crate::ops::support::Maybe;
use crate::ops::support::autodiff::{inner, outer, register};

/// Parents: `q`, `k`, `v`.
#[derive(Debug)]
struct Attention;

#[derive(Debug, Clone)]
struct AttentionSaved<B: Backend> {
    inputs: [NodeId; 3],
    reset: Option<FloatTensor<B>>,
    o: FloatTensor<B>,
    lse: FloatTensor<B>,
    problem: Problem,
}

impl<B: AttentionOps> Backward<B, 3> for Attention {
    type State = AttentionSaved<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 3>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let d_o = grads.consume::<B>(&ops.node);
        let saved = ops.state;
        let [q, k, v] = saved
            .inputs
            .map(|id| checkpointer.retrieve_node_output::<FloatTensor<B>>(id));
        let reset = Maybe::from_option(saved.reset);
        let d = B::attention_backward(q, k, v, reset, saved.o, saved.lse, d_o, saved.problem);
        let parents = ops.parents.map(|parent| parent.map(|parent| parent.id));
        register::<B, 3>(parents, [Some(d.q), Some(d.k), Some(d.v)], grads);
    }
}

/// Parent: `qkv`.
#[derive(Debug)]
struct Packed;

#[derive(Debug, Clone)]
struct PackedSaved<B: Backend> {
    qkv: NodeId,
    reset: Option<FloatTensor<B>>,
    o: FloatTensor<B>,
    lse: FloatTensor<B>,
    problem: Problem,
}

impl<B: AttentionOps> Backward<B, 1> for Packed {
    type State = PackedSaved<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let d_o = grads.consume::<B>(&ops.node);
        let saved = ops.state;
        let qkv = checkpointer.retrieve_node_output::<FloatTensor<B>>(saved.qkv);
        let reset = Maybe::from_option(saved.reset);
        let d_qkv =
            B::packed_attention_backward(qkv, reset, saved.o, saved.lse, d_o, saved.problem);
        let parents = ops.parents.map(|parent| parent.map(|parent| parent.id));
        register::<B, 1>(parents, [Some(d_qkv)], grads);
    }
}

impl<B: AttentionOps, C: CheckpointStrategy> AttentionOps for Autodiff<B, C> {
    fn attention_forward(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        reset: Maybe<Self>,
        problem: Problem,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let reset = reset.into_option().map(inner::<B, C>);
        let (o, lse) = B::attention_forward(
            inner::<B, C>(q.clone()),
            inner::<B, C>(k.clone()),
            inner::<B, C>(v.clone()),
            Maybe::from_option(reset.clone()),
            problem,
        );
        let constant = outer::<B, C>(lse.clone());
        let nodes = [q.node(), k.node(), v.node()];
        let prep = Backward::<B, 3>::prepare::<C>(Attention, nodes).compute_bound();
        let o = match prep.stateful() {
            OpsKind::Tracked(mut prep) => {
                let saved = AttentionSaved {
                    inputs: [&q, &k, &v].map(|input| prep.checkpoint(input)),
                    reset,
                    o: o.clone(),
                    lse,
                    problem,
                };
                prep.finish(saved, o)
            }
            OpsKind::UnTracked(prep) => prep.finish(o),
        };
        (o, constant)
    }

    fn attention_backward(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        reset: Maybe<Self>,
        o: FloatTensor<Self>,
        lse: FloatTensor<Self>,
        d_o: FloatTensor<Self>,
        problem: Problem,
    ) -> AttentionGradients<Self> {
        let [q, k, v] = [q, k, v].map(inner::<B, C>);
        let [o, lse, d_o] = [o, lse, d_o].map(inner::<B, C>);
        let reset = reset.map(inner::<B, C>);
        B::attention_backward(q, k, v, reset, o, lse, d_o, problem).map(outer::<B, C>)
    }

    fn packed_attention_forward(
        qkv: FloatTensor<Self>,
        reset: Maybe<Self>,
        problem: Problem,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let reset = reset.into_option().map(inner::<B, C>);
        let (o, lse) = B::packed_attention_forward(
            inner::<B, C>(qkv.clone()),
            Maybe::from_option(reset.clone()),
            problem,
        );
        let constant = outer::<B, C>(lse.clone());
        let prep = Backward::<B, 1>::prepare::<C>(Packed, [qkv.node()]).compute_bound();
        let o = match prep.stateful() {
            OpsKind::Tracked(mut prep) => {
                let saved = PackedSaved {
                    qkv: prep.checkpoint(&qkv),
                    reset,
                    o: o.clone(),
                    lse,
                    problem,
                };
                prep.finish(saved, o)
            }
            OpsKind::UnTracked(prep) => prep.finish(o),
        };
        (o, constant)
    }

    fn packed_attention_backward(
        qkv: FloatTensor<Self>,
        reset: Maybe<Self>,
        o: FloatTensor<Self>,
        lse: FloatTensor<Self>,
        d_o: FloatTensor<Self>,
        problem: Problem,
    ) -> FloatTensor<Self> {
        let [qkv, o, lse, d_o] = [qkv, o, lse, d_o].map(inner::<B, C>);
        let reset = reset.map(inner::<B, C>);
        outer::<B, C>(B::packed_attention_backward(
            qkv, reset, o, lse, d_o, problem,
        ))
    }
}
