//! Differentiation: the states are one node with every input as a parent, the last states hang on it.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, AutodiffBackend, Backend};
use burn_autodiff::NodeId;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};

use super::{
    CellGradients, CellInputs, CellOps, CellOutputGrads, CellSpec, CellStates, StepGradients,
    StepInputs,
};
use crate::ops::support::Maybe;
use crate::ops::support::autodiff::{Slot, Tracked, follow, inner, outer, take};

/// The backward step of the states. Parents: x, w, u, bias_ih, bias_hh, h0, c0; `x` again stands for an absent one.
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
    h: FloatTensor<B>,
    saved: Maybe<B>,
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
        let d_h = grads.consume::<B>(&ops.node);
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
        };
        let outputs = CellOutputGrads {
            h: saved.h,
            saved: saved.saved,
            d_h,
            d_h_last: Maybe::from_option(take::<B>(&saved.d_h_last)),
            d_c_last: Maybe::from_option(take::<B>(&saved.d_c_last)),
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
        for (parent, gradient) in ops.parents.into_iter().zip(gradients) {
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                grads.register::<B>(parent.id, gradient);
            }
        }
    }
}

fn inner_inputs<B: Backend, C: CheckpointStrategy>(
    inputs: CellInputs<Autodiff<B, C>>,
) -> CellInputs<B> {
    CellInputs {
        x: inputs.x.into_primitive(),
        w: inputs.w.into_primitive(),
        u: inputs.u.into_primitive(),
        bias_ih: inner(inputs.bias_ih),
        bias_hh: inner(inputs.bias_hh),
        h0: inner(inputs.h0),
        c0: inner(inputs.c0),
        reset: inner(inputs.reset),
    }
}

fn inner_steps<B: Backend, C: CheckpointStrategy>(
    inputs: StepInputs<Autodiff<B, C>>,
) -> StepInputs<B> {
    StepInputs {
        xg: inputs.xg.into_primitive(),
        u: inputs.u.into_primitive(),
        bias: inner(inputs.bias),
        h0: inner(inputs.h0),
        c0: inner(inputs.c0),
        reset: inner(inputs.reset),
    }
}

fn inner_grads<B: Backend, C: CheckpointStrategy>(
    grads: CellOutputGrads<Autodiff<B, C>>,
) -> CellOutputGrads<B> {
    CellOutputGrads {
        h: grads.h.into_primitive(),
        saved: inner(grads.saved),
        d_h: grads.d_h.into_primitive(),
        d_h_last: inner(grads.d_h_last),
        d_c_last: inner(grads.d_c_last),
    }
}

fn outer_states<B: Backend, C: CheckpointStrategy>(
    states: CellStates<B>,
) -> CellStates<Autodiff<B, C>> {
    CellStates {
        h: Autodiff::<B, C>::from_inner(states.h),
        h_last: Autodiff::<B, C>::from_inner(states.h_last),
        c_last: outer(states.c_last),
        saved: outer(states.saved),
    }
}

impl<B: CellOps, C: CheckpointStrategy> CellOps for Autodiff<B, C> {
    fn cell_layer(inputs: CellInputs<Self>, spec: CellSpec) -> CellStates<Self> {
        let problem = spec.problem::<Self>(&inputs.x, &inputs.u);
        let (h0, c0) = (
            inputs.h0.clone().into_option(),
            inputs.c0.clone().into_option(),
        );
        let node = |tensor: &Maybe<Self>| match tensor {
            Maybe::Some(tensor) => tensor.node(),
            Maybe::None => inputs.x.node(),
        };
        let nodes = [
            inputs.x.node(),
            inputs.w.node(),
            inputs.u.node(),
            node(&inputs.bias_ih),
            node(&inputs.bias_hh),
            node(&inputs.h0),
            node(&inputs.c0),
        ];
        let prep = Backward::<B, 7>::prepare::<C>(Layer, nodes).compute_bound();
        let (d_h_last, d_c_last) = (Slot::<B>::default(), Slot::<B>::default());
        let (h, h_last, c_last): (Tracked<B, C>, _, _) = match prep.stateful() {
            OpsKind::Tracked(mut prep) => {
                let ids = [&inputs.x, &inputs.w, &inputs.u].map(|input| prep.checkpoint(input));
                let inputs = inner_inputs(inputs);
                let states = B::cell_layer_forward(inputs.clone(), spec, true);
                let saved = Saved {
                    inputs: ids,
                    bias_ih: inputs.bias_ih,
                    bias_hh: inputs.bias_hh,
                    h0: inputs.h0,
                    c0: inputs.c0,
                    reset: inputs.reset,
                    h: states.h.clone(),
                    saved: states.saved,
                    d_h_last: d_h_last.clone(),
                    d_c_last: d_c_last.clone(),
                    spec,
                };
                (prep.finish(saved, states.h), states.h_last, states.c_last)
            }
            OpsKind::UnTracked(prep) => {
                let states = B::cell_layer_forward(inner_inputs(inputs), spec, false);
                (prep.finish(states.h), states.h_last, states.c_last)
            }
        };
        let h_last = follow::<B, C>(&h, h_last, d_h_last);
        let c_last = c_last
            .into_option()
            .map(|c_last| follow::<B, C>(&h, c_last, d_c_last));
        // After no steps the last states are the initial ones, and so are their gradients.
        let (h_last, c_last) = if problem.steps == 0 {
            (h0.unwrap_or(h_last), c_last.map(|c| c0.unwrap_or(c)))
        } else {
            (h_last, c_last)
        };
        CellStates {
            h,
            h_last,
            c_last: Maybe::from_option(c_last),
            saved: Maybe::None,
        }
    }

    fn cell_layer_forward(
        inputs: CellInputs<Self>,
        spec: CellSpec,
        save: bool,
    ) -> CellStates<Self> {
        outer_states(B::cell_layer_forward(inner_inputs(inputs), spec, save))
    }

    fn cell_layer_backward(
        inputs: CellInputs<Self>,
        grads: CellOutputGrads<Self>,
        spec: CellSpec,
        want_x: bool,
    ) -> CellGradients<Self> {
        let gradients =
            B::cell_layer_backward(inner_inputs(inputs), inner_grads(grads), spec, want_x);
        CellGradients {
            x: outer(gradients.x),
            w: Self::from_inner(gradients.w),
            u: Self::from_inner(gradients.u),
            bias_ih: outer(gradients.bias_ih),
            bias_hh: outer(gradients.bias_hh),
            h0: outer(gradients.h0),
            c0: outer(gradients.c0),
        }
    }

    fn cell_steps_forward(
        inputs: StepInputs<Self>,
        spec: CellSpec,
        save: bool,
    ) -> CellStates<Self> {
        outer_states(B::cell_steps_forward(inner_steps(inputs), spec, save))
    }

    fn cell_steps_backward(
        inputs: StepInputs<Self>,
        grads: CellOutputGrads<Self>,
        spec: CellSpec,
    ) -> StepGradients<Self> {
        let gradients = B::cell_steps_backward(inner_steps(inputs), inner_grads(grads), spec);
        StepGradients {
            xg: Self::from_inner(gradients.xg),
            u: Self::from_inner(gradients.u),
            bias: Self::from_inner(gradients.bias),
            h0: Self::from_inner(gradients.h0),
            c0: outer(gradients.c0),
        }
    }

    fn persistent_forward(
        inputs: StepInputs<Self>,
        spec: CellSpec,
        save: bool,
    ) -> CellStates<Self> {
        Self::cell_steps_forward(inputs, spec, save)
    }

    fn persistent_backward(
        inputs: StepInputs<Self>,
        grads: CellOutputGrads<Self>,
        spec: CellSpec,
    ) -> StepGradients<Self> {
        Self::cell_steps_backward(inputs, grads, spec)
    }
}
