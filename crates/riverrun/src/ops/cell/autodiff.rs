//! Differentiation: one node with every input as a parent, and its outputs: the states and the last ones.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend};
use burn_autodiff::NodeId;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};

use super::{CellInputs, CellOps, CellOutputGrads, CellSpec, CellStates};
use crate::ops::support::autodiff::{Slot, Tracked, inner, node_or, output, register};
use crate::ops::support::{Maybe, MaybeInt};

/// The backward step. Parents: x, w, u, bias_ih, bias_hh, h0, c0; `x` again stands for an absent one.
#[derive(Debug)]
struct Layer;

#[derive(Debug, Clone)]
struct Saved<B: Backend> {
    /// Checkpointed: x, w, u.
    inputs: [NodeId; 3],
    bias_ih: Maybe<B>,
    bias_hh: Maybe<B>,
    h0: Maybe<B>,
    c0: Maybe<B>,
    reset: Maybe<B>,
    lengths: MaybeInt<B>,
    h: FloatTensor<B>,
    saved: Maybe<B>,
    d_h: Slot<B>,
    d_h_last: Slot<B>,
    d_c_last: Slot<B>,
    spec: CellSpec,
}

impl<B: CellOps> Backward<B, 7> for Layer {
    type State = Saved<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 7>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let saved = ops.state;
        let [x, w, u] = saved
            .inputs
            .map(|id| checkpointer.retrieve_node_output::<FloatTensor<B>>(id));
        let inputs = CellInputs {
            x,
            w,
            u,
            bias_ih: saved.bias_ih,
            bias_hh: saved.bias_hh,
            h0: saved.h0,
            c0: saved.c0,
            reset: saved.reset,
            lengths: saved.lengths,
        };
        let outputs = CellOutputGrads {
            d_h: saved.d_h.take_or_zeros(&saved.h),
            h: saved.h,
            saved: saved.saved,
            d_h_last: Maybe::from_option(saved.d_h_last.take()),
            d_c_last: Maybe::from_option(saved.d_c_last.take()),
        };
        let want_x = ops.parents[0].is_some();
        let gradients = B::cell_layer_backward(inputs, outputs, saved.spec, want_x);
        let gradients = [
            gradients.x.into_option(),
            Some(gradients.w),
            Some(gradients.u),
            gradients.bias_ih.into_option(),
            gradients.bias_hh.into_option(),
            gradients.h0.into_option(),
            gradients.c0.into_option(),
        ];
        let parents = ops.parents.map(|parent| parent.map(|parent| parent.id));
        register::<B, 7>(parents, gradients, grads);
    }
}

impl<B: CellOps, C: CheckpointStrategy> CellOps for Autodiff<B, C> {
    fn cell_layer(inputs: CellInputs<Self>, spec: CellSpec) -> CellStates<Self> {
        let problem = spec.problem::<Self>(&inputs.x, &inputs.u);
        let (h0, c0) = (
            inputs.h0.clone().into_option(),
            inputs.c0.clone().into_option(),
        );
        let x = &inputs.x;
        let nodes = [
            x.node(),
            inputs.w.node(),
            inputs.u.node(),
            node_or(&inputs.bias_ih, x),
            node_or(&inputs.bias_hh, x),
            node_or(&inputs.h0, x),
            node_or(&inputs.c0, x),
        ];
        let prep = Backward::<B, 7>::prepare::<C>(Layer, nodes).compute_bound();
        let [d_h, d_h_last, d_c_last] = [(); 3].map(|()| Slot::<B>::default());
        let (core, states): (Tracked<B, C>, _) = match prep.stateful() {
            OpsKind::Tracked(mut prep) => {
                let ids = [&inputs.x, &inputs.w, &inputs.u].map(|input| prep.checkpoint(input));
                let inputs: CellInputs<B> = inputs.map(inner::<B, C>);
                let states = B::cell_layer_forward(inputs.clone(), spec, true);
                let saved = Saved {
                    inputs: ids,
                    bias_ih: inputs.bias_ih,
                    bias_hh: inputs.bias_hh,
                    h0: inputs.h0,
                    c0: inputs.c0,
                    reset: inputs.reset,
                    lengths: inputs.lengths,
                    h: states.h.clone(),
                    saved: states.saved.clone(),
                    d_h: d_h.clone(),
                    d_h_last: d_h_last.clone(),
                    d_c_last: d_c_last.clone(),
                    spec,
                };
                (prep.finish(saved, states.h.clone()), states)
            }
            OpsKind::UnTracked(prep) => {
                let states = B::cell_layer(inputs.map(inner::<B, C>), spec);
                (prep.finish(states.h.clone()), states)
            }
        };
        let h = output::<B, C>(&core, states.h, d_h);
        let h_last = output::<B, C>(&core, states.h_last, d_h_last);
        let c_last = states
            .c_last
            .map::<Self>(|c_last| output::<B, C>(&core, c_last, d_c_last));
        // After no steps the last states are the initial ones, and so are their gradients.
        let (h_last, c_last) = match problem.steps {
            0 => (
                h0.unwrap_or(h_last),
                c_last.map(|c_last| c0.unwrap_or(c_last)),
            ),
            _ => (h_last, c_last),
        };
        CellStates {
            h,
            h_last,
            c_last,
            saved: Maybe::None,
        }
    }
}
