//! Differentiation: one node with two outputs, the step sizes and the decays.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, TensorMetadata};
use burn_autodiff::NodeId;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};

use super::{DecayGradients, DecayInputs, Decays, LogDecayOps};
use crate::ops::support::Maybe;
use crate::ops::support::autodiff::{Slot, inner, outer, output, register};

/// Parents: `a`, `A_log`, `dt_bias`.
#[derive(Debug)]
struct LogDecay;

#[derive(Debug, Clone)]
struct Saved<B: Backend> {
    /// Checkpointed: `a`.
    a: NodeId,
    a_log: FloatTensor<B>,
    dt_bias: FloatTensor<B>,
    d_step: Slot<B>,
    d_g: Slot<B>,
}

impl<B: LogDecayOps> Backward<B, 3> for LogDecay {
    type State = Saved<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 3>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let Saved {
            a,
            a_log,
            dt_bias,
            d_step,
            d_g,
        } = ops.state;
        let heads = a_log.shape();
        let inputs = DecayInputs {
            a: checkpointer.retrieve_node_output::<FloatTensor<B>>(a),
            a_log,
            dt_bias,
        };
        let [d_step, d_g] = [d_step, d_g].map(|slot| Maybe::from_option(slot.take()));
        let d = B::log_decay_backward(inputs, d_step, d_g);
        let d_a_log = match d.a_log.shape()[1] {
            1 => d.a_log,
            _ => B::float_sum_dim(d.a_log, 1),
        };
        let d_a_log = B::float_reshape(d_a_log, heads);
        let parents = ops.parents.map(|parent| parent.map(|parent| parent.id));
        register::<B, 3>(parents, [Some(d.a), Some(d_a_log), Some(d.dt_bias)], grads);
    }
}

impl<B: LogDecayOps, C: CheckpointStrategy> LogDecayOps for Autodiff<B, C> {
    fn log_decay(inputs: DecayInputs<Self>, with_step: bool) -> Decays<Self> {
        let nodes = [inputs.a.node(), inputs.a_log.node(), inputs.dt_bias.node()];
        let prep = Backward::<B, 3>::prepare::<C>(LogDecay, nodes).compute_bound();
        let (d_step, d_g) = (Slot::<B>::default(), Slot::<B>::default());
        let (core, out) = match prep.stateful() {
            OpsKind::Tracked(mut prep) => {
                let a = prep.checkpoint(&inputs.a);
                let inputs: DecayInputs<B> = inputs.map(inner::<B, C>);
                let saved = Saved {
                    a,
                    a_log: inputs.a_log.clone(),
                    dt_bias: inputs.dt_bias.clone(),
                    d_step: d_step.clone(),
                    d_g: d_g.clone(),
                };
                let out = B::log_decay(inputs, with_step);
                (prep.finish(saved, out.g.clone()), out)
            }
            OpsKind::UnTracked(prep) => {
                let out = B::log_decay(inputs.map(inner::<B, C>), with_step);
                (prep.finish(out.g.clone()), out)
            }
        };
        Decays {
            step: out.step.map(|step| output::<B, C>(&core, step, d_step)),
            g: output::<B, C>(&core, out.g, d_g),
        }
    }

    fn log_decay_backward(
        inputs: DecayInputs<Self>,
        d_step: Maybe<Self>,
        d_g: Maybe<Self>,
    ) -> DecayGradients<Self> {
        let inputs = inputs.map(inner::<B, C>);
        let [d_step, d_g] = [d_step, d_g].map(|d| d.map(inner::<B, C>));
        B::log_decay_backward(inputs, d_step, d_g).map(outer::<B, C>)
    }
}
