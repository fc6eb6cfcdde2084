//! Differentiation: one node with the inputs and the initial state as parents, and its outputs: the states and the last one.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, TensorMetadata};
use burn_autodiff::NodeId;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, NodeGuard, Ops, OpsKind};

use super::recompute::{RecomputedScan, Scan};
use super::{GateInputs, RecurrenceOps, SavedStates, ScanGradients, ScanSpec};
use crate::ops::support::Maybe;
use crate::ops::support::autodiff::{Slot, Tracked, inner, outer, output, recomputed_output};

/// The backward step; `N` parents: the inputs, then `h0` if there is one.
#[derive(Debug)]
struct States;

#[derive(Debug, Clone)]
struct StatesSaved<B: Backend> {
    /// Checkpointed nodes of the inputs, one (packed) or two.
    inputs: Vec<NodeId>,
    h0: Option<FloatTensor<B>>,
    reset: Option<FloatTensor<B>>,
    /// Absent where they are recomputed.
    h: Option<FloatTensor<B>>,
    d_h: Slot<B>,
    d_h_last: Slot<B>,
    spec: ScanSpec,
}

impl<B: RecurrenceOps, const N: usize> Backward<B, N> for States {
    type State = StatesSaved<B>;

    fn backward(
        self,
        ops: Ops<Self::State, N>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let saved = ops.state;
        let mut inputs = saved
            .inputs
            .iter()
            .map(|&id| checkpointer.retrieve_node_output::<FloatTensor<B>>(id))
            .collect::<Vec<_>>()
            .into_iter();
        let mut next = || inputs.next().expect("as many inputs as were saved");
        let inputs = match saved.inputs.len() {
            1 => GateInputs::Packed(next()),
            _ => GateInputs::Separate(next(), next()),
        };
        let scan = Scan::<B> {
            inputs,
            h0: saved.h0,
            reset: saved.reset,
            spec: saved.spec,
        };
        let d_h = saved.d_h.take().unwrap_or_else(|| scan.zero_states());
        let h = saved.h.unwrap_or_else(|| scan.forward());
        let gradients = scan.backward(h, d_h, saved.d_h_last.take());
        let d_inputs = match gradients.inputs {
            GateInputs::Separate(a, b) => vec![a, b],
            GateInputs::Packed(x) => vec![x],
        };
        for (parent, gradient) in ops
            .parents
            .into_iter()
            .zip(d_inputs.into_iter().chain([gradients.h0]))
        {
            if let Some(parent) = parent {
                grads.register::<B>(parent.id, gradient);
            }
        }
    }
}

fn primitives<B: Backend, C: CheckpointStrategy>(tensors: &[Tracked<B, C>]) -> GateInputs<B> {
    match tensors {
        [x] => GateInputs::Packed(x.clone().into_primitive()),
        [a, b] => GateInputs::Separate(a.clone().into_primitive(), b.clone().into_primitive()),
        _ => unreachable!("one packed input or two separate ones"),
    }
}

fn run<B: RecurrenceOps, C: CheckpointStrategy, const N: usize>(
    guards: [NodeGuard; N],
    inputs: Vec<Tracked<B, C>>,
    h0: Option<Tracked<B, C>>,
    reset: Option<FloatTensor<B>>,
    spec: ScanSpec,
) -> (Tracked<B, C>, Tracked<B, C>) {
    let maybe = |tensor: Option<FloatTensor<B>>| tensor.map_or(Maybe::None, Maybe::Some);
    let start = h0.clone().map(|h0| h0.into_primitive());
    let (h, last) = B::recurrence(
        primitives::<B, C>(&inputs),
        maybe(start.clone()),
        maybe(reset.clone()),
        spec,
    );
    let (d_h, d_h_last) = (Slot::<B>::default(), Slot::<B>::default());
    let prep = Backward::<B, N>::prepare::<C>(States, guards);
    let prep = if spec.saved_states == SavedStates::All {
        prep.compute_bound()
    } else {
        let recomputed = RecomputedScan::<B> {
            inputs: inputs.iter().map(|input| input.node().id()).collect(),
            h0: h0
                .as_ref()
                .map(|h0| (h0.node().id(), h0.is_tracked(), h0.clone().into_primitive())),
            reset: reset.clone(),
            spec,
        };
        let tracked = h0.as_ref().filter(|h0| h0.is_tracked());
        prep.memory_bound()
            .retro_forward(recomputed)
            .parents(inputs.iter().chain(tracked))
    };
    let core = match prep.stateful() {
        OpsKind::Tracked(mut prep) => {
            let saved = StatesSaved {
                inputs: inputs.iter().map(|input| prep.checkpoint(input)).collect(),
                h0: start,
                reset,
                h: (spec.saved_states == SavedStates::All).then(|| h.clone()),
                d_h: d_h.clone(),
                d_h_last: d_h_last.clone(),
                spec,
            };
            prep.finish(saved, h)
        }
        OpsKind::UnTracked(prep) => prep.finish(h),
    };
    let states = match spec.saved_states {
        SavedStates::All => output::<B, C>(&core, core.primitive().clone(), d_h),
        _ => recomputed_output::<B, C>(&core, d_h),
    };
    let last = output::<B, C>(&core, last, d_h_last);
    (states, last)
}

impl<B: RecurrenceOps, C: CheckpointStrategy> RecurrenceOps for Autodiff<B, C> {
    fn recurrence(
        inputs: GateInputs<Self>,
        h0: Maybe<Self>,
        reset: Maybe<Self>,
        spec: ScanSpec,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let empty = inputs.first().shape()[1] == 0;
        let inputs = match inputs {
            GateInputs::Separate(a, b) => vec![a, b],
            GateInputs::Packed(x) => vec![x],
        };
        let h0 = h0.into_option();
        let reset = reset.into_option().map(|reset| reset.into_primitive());
        let start = h0.clone();
        let (h, last) = match (inputs.as_slice(), &h0) {
            ([x], None) => run::<B, C, 1>([x.node()], inputs, h0, reset, spec),
            ([x], Some(s)) => run::<B, C, 2>([x.node(), s.node()], inputs, h0, reset, spec),
            ([a, b], None) => run::<B, C, 2>([a.node(), b.node()], inputs, h0, reset, spec),
            ([a, b], Some(s)) => {
                run::<B, C, 3>([a.node(), b.node(), s.node()], inputs, h0, reset, spec)
            }
            _ => unreachable!("one packed input or two separate ones"),
        };
        // After no steps the last state is the initial one, and so is its gradient.
        match start {
            Some(start) if empty => (h, start),
            _ => (h, last),
        }
    }

    fn recurrence_forward(
        inputs: GateInputs<Self>,
        h0: Maybe<Self>,
        reset: Maybe<Self>,
        spec: ScanSpec,
    ) -> FloatTensor<Self> {
        Self::recurrence(inputs, h0, reset, spec).0
    }

    fn recurrence_backward(
        inputs: GateInputs<Self>,
        h0: Maybe<Self>,
        reset: Maybe<Self>,
        h: FloatTensor<Self>,
        d_h: FloatTensor<Self>,
        d_h_last: Maybe<Self>,
        spec: ScanSpec,
    ) -> ScanGradients<Self> {
        B::recurrence_backward(
            inputs.map(inner::<B, C>),
            h0.map(inner::<B, C>),
            reset.map(inner::<B, C>),
            inner::<B, C>(h),
            inner::<B, C>(d_h),
            d_h_last.map(inner::<B, C>),
            spec,
        )
        .map(outer::<B, C>)
    }
}
