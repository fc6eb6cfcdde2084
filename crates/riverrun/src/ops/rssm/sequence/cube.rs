//! GPUs: all steps in one launch.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::Shape;
use burn_cubecl::CubeBackend;
use cubecl::server::Handle;
use riverrun_kernels::rssm::sequence::{Problem, Weights, gpu};

use super::{RssmCuts, RssmInputs, RssmSaved, RssmSequenceOps, RssmWeights};
use crate::ops::support::cube::{dtype, empty_like, handle, into_contiguous};

fn of(tensor: FloatTensor<CubeBackend>) -> Handle {
    into_contiguous(tensor).handle
}

fn handles(weights: RssmWeights<CubeBackend>) -> Weights<Handle> {
    Weights {
        deter: of(weights.deter),
        deter_bias: of(weights.deter_bias),
        deter_norm: of(weights.deter_norm),
        stoch: of(weights.stoch),
        stoch_bias: of(weights.stoch_bias),
        stoch_norm: of(weights.stoch_norm),
        blocks: of(weights.blocks),
        inputs: of(weights.inputs),
        hidden_norm: of(weights.hidden_norm),
        gates: of(weights.gates),
        gates_bias: of(weights.gates_bias),
        posterior: of(weights.posterior),
        posterior_norm: of(weights.posterior_norm),
        logits: of(weights.logits),
        logits_bias: of(weights.logits_bias),
    }
}

impl RssmSequenceOps for CubeBackend {
    fn rssm_sequence(
        inputs: RssmInputs<Self>,
        weights: RssmWeights<Self>,
        problem: Problem,
    ) -> FloatTensor<Self> {
        let shape = Shape::new([problem.batch, problem.steps, problem.row()]);
        let states = empty_like(&inputs.actions, shape);
        let dtype = dtype(&states);
        let args = gpu::Forward {
            d0: of(inputs.d0),
            s0: of(inputs.s0),
            actions: of(inputs.actions),
            tokens: of(inputs.tokens),
            noise: of(inputs.noise),
            reset: handle(inputs.reset),
            weights: handles(weights),
            states: states.handle.clone(),
        };
        gpu::forward(&states.client, &problem, dtype, &args)
            .unwrap_or_else(|error| panic!("{error}"));
        states
    }

    fn rssm_sequence_backward(
        states: FloatTensor<Self>,
        d_states: FloatTensor<Self>,
        saved: RssmSaved<Self>,
        weights: RssmWeights<Self>,
        problem: Problem,
    ) -> RssmCuts<Self> {
        let states = into_contiguous(states);
        let dtype = dtype(&states);
        let (batch, rows, logits) = (problem.batch, problem.rows(), problem.logits());
        let empty = |shape: Shape| empty_like(&states, shape);
        let width = problem.width();
        let found = RssmCuts::<Self> {
            deter: empty(saved.deter.shape()),
            stoch: empty(saved.stoch.shape()),
            hidden: empty(Shape::new([problem.blocks, rows, width])),
            gates: empty(saved.gates.shape()),
            posterior: empty(saved.posterior.shape()),
            logits: empty(Shape::new([batch, problem.steps, logits])),
            d0: empty(Shape::new([batch, problem.deter])),
            s0: empty(Shape::new([batch, logits])),
        };
        let args = gpu::Backward {
            states: states.handle.clone(),
            d_states: of(d_states),
            reset: handle(saved.reset),
            before: of(saved.before),
            deter: of(saved.deter),
            stoch: of(saved.stoch),
            hidden: of(saved.hidden),
            gates: of(saved.gates),
            posterior: of(saved.posterior),
            weights: handles(weights),
            gradients: gpu::Gradients {
                deter: found.deter.handle.clone(),
                stoch: found.stoch.handle.clone(),
                hidden: found.hidden.handle.clone(),
                gates: found.gates.handle.clone(),
                posterior: found.posterior.handle.clone(),
                logits: found.logits.handle.clone(),
                d0: found.d0.handle.clone(),
                s0: found.s0.handle.clone(),
            },
        };
        gpu::backward(&states.client, &problem, dtype, &args)
            .unwrap_or_else(|error| panic!("{error}"));
        found
    }
}
