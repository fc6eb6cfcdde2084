//! Observation without a graph of its steps: in one launch where [`Rssm::one_launch_missing`] has no reason against it, otherwise
//! one step after the other. The backward pass goes through the steps once, in one launch likewise, without making gradients of
//! weights; those are products over all steps. On an H200 in bf16, forward and backward over 16 x 64 steps, this takes 3.3 and
//! 5.2 ms in one launch with 12 and 50 million parameters, and 20.8 ms step by step with 200 million, where a graph of every step
//! takes 11.4, 16.3 and 32.4 ms.

use burn::backend::Dispatch;
use burn::module::{Module, ModuleMapper, Param};
use burn::nn::Linear;
use burn::tensor::{Bool, FloatDType, Tensor};
use riverrun_kernels::rssm::sequence::Problem;

use super::block_linear::{from_blocks, to_blocks};
use super::observe::Inputs;
use super::{Rssm, RssmState};
use crate::Error;
use crate::nn::{RmsNorm, linear};
use crate::ops::rssm::sequence::{RssmCuts, RssmInputs, RssmSaved, RssmSequenceOps, RssmWeights};
use crate::ops::rssm::{silu, silu_blocks};
use crate::ops::support::Maybe;
use crate::ops::{LinearSpec, linear as product};

/// The same weights without autodiff.
struct Plain;

impl ModuleMapper for Plain {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        Param::from_tensor(plain(param.val()))
    }
}

fn plain<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    match x.is_autodiff() {
        true => x.inner(),
        false => x,
    }
}

/// A bias, or zeros.
fn bias(layer: &Linear) -> Tensor<1> {
    match &layer.bias {
        Some(bias) => bias.val(),
        None => layer
            .weight
            .val()
            .narrow(0, 0, 1)
            .squeeze_dim::<1>(0)
            .zeros_like(),
    }
}

/// A layer's value before its norm, the norm, and the activation of it.
fn normalized<const D: usize>(norm: &RmsNorm, x: Tensor<D>) -> [Tensor<D>; 3] {
    let normal = norm.forward(x.clone());
    [x, normal.clone(), silu(normal)]
}

impl Rssm {
    /// The reason why the device of the weights cannot run `batch` sequences in one launch, if it cannot:
    /// it takes an NVIDIA GPU of compute capability 8.0, blocks, `hidden` and `stoch · classes` of multiples of 16, and 2, 4, 8 or a
    /// multiple of 16 classes.
    #[doc(hidden)]
    pub fn one_launch_missing(&self, batch: usize) -> Option<String> {
        let weight = self.deter_input.weight.val();
        #[cfg(feature = "cube")]
        if let Some(client) = crate::device::client(&weight.device()) {
            let problem = self.problem([batch, 1]);
            return match crate::ops::support::cube::known(weight.dtype()) {
                Some(dtype) => {
                    riverrun_kernels::rssm::sequence::gpu::missing(&client, &problem, dtype)
                }
                None => Some(format!("{:?} is not among its types", weight.dtype())),
            };
        }
        let _ = (weight, batch);
        Some("the device is no GPU".into())
    }

    fn problem(&self, [batch, steps]: [usize; 2]) -> Problem {
        let norms = [
            &self.deter_norm,
            &self.stoch_norm,
            &self.hidden_norm,
            &self.posterior_norm,
        ];
        Problem {
            batch,
            steps,
            deter: self.deter,
            hidden: self.deter_input.weight.dims()[1],
            stoch: self.stoch,
            classes: self.classes,
            blocks: self.gates.blocks(),
            unimix: self.unimix as f32,
            epsilons: norms.map(|norm| norm.epsilon),
        }
    }

    fn weights(&self) -> RssmWeights<Dispatch> {
        let matrix = |layer: &Linear| layer.weight.val().into_dispatch();
        let norm = |norm: &RmsNorm| norm.gamma.val().into_dispatch();
        let gates = self.gates.weight.val();
        let gates_bias = match &self.gates.bias {
            Some(bias) => bias.val(),
            None => gates.clone().narrow(1, 0, 1).zeros_like(),
        };
        RssmWeights {
            deter: matrix(&self.deter_input),
            deter_bias: bias(&self.deter_input).into_dispatch(),
            deter_norm: norm(&self.deter_norm),
            stoch: matrix(&self.stoch_input),
            stoch_bias: bias(&self.stoch_input).into_dispatch(),
            stoch_norm: norm(&self.stoch_norm),
            blocks: self.hidden_blocks.weight.val().into_dispatch(),
            inputs: matrix(&self.hidden_inputs),
            hidden_norm: norm(&self.hidden_norm),
            gates: gates.into_dispatch(),
            gates_bias: gates_bias.into_dispatch(),
            posterior: matrix(&self.posterior_deter),
            posterior_norm: norm(&self.posterior_norm),
            logits: matrix(&self.posterior_logits),
            logits_bias: bias(&self.posterior_logits).into_dispatch(),
        }
    }

    /// The states of all steps, `[B, T, deter + 2 stoch · classes]`, of inputs without a graph, by a model without one.
    fn states(&self, inputs: Inputs, problem: Problem) -> Tensor<3> {
        if let Some(reason) = self.one_launch_missing(problem.batch) {
            tracing::debug!(
                batch = problem.batch,
                steps = problem.steps,
                reason,
                "RSSM step by step"
            );
            return Tensor::cat(self.observe_steps(inputs).into(), 2);
        }
        let hidden = problem.hidden;
        let rows = self
            .hidden_inputs
            .weight
            .val()
            .narrow(0, 2 * hidden, hidden);
        let of_actions = product(
            inputs.actions,
            rows,
            Some(bias(&self.hidden_inputs)),
            LinearSpec::default(),
        )
        .unwrap_or_else(Error::raise);
        let dtype = FloatDType::from(of_actions.dtype());
        let reset = inputs.reset.map(|reset| plain(reset.float()).cast(dtype));
        let inputs = RssmInputs {
            d0: inputs.state.deter.into_dispatch(),
            s0: inputs.state.stoch.into_dispatch(),
            actions: of_actions.into_dispatch(),
            tokens: inputs.tokens.into_dispatch(),
            noise: inputs.noise.into_dispatch(),
            reset: Maybe::from_option(reset.map(Tensor::into_dispatch)),
        };
        Tensor::from_dispatch(<Dispatch as RssmSequenceOps>::rssm_sequence(
            inputs,
            self.weights(),
            problem,
        ))
    }

    /// Deterministic states, samples and logits of all steps.
    pub(super) fn observe_sequence(&self, inputs: Inputs) -> [Tensor<3>; 3] {
        let [batch, steps, _] = inputs.actions.dims();
        let problem = self.problem([batch, steps]);
        // The encodings depend on the weights.
        let tracked = [&inputs.actions, &inputs.tokens]
            .iter()
            .any(|x| x.is_autodiff())
            || [&inputs.state.deter, &inputs.state.stoch]
                .iter()
                .any(|x| x.is_autodiff());
        let given = Inputs {
            actions: plain(inputs.actions.clone()),
            tokens: plain(inputs.tokens.clone()),
            noise: plain(inputs.noise.clone()),
            reset: inputs.reset.clone().map(Tensor::inner),
            state: RssmState::new(
                plain(inputs.state.deter.clone()),
                plain(inputs.state.stoch.clone()),
            ),
        };
        let states = match tracked {
            true => {
                let states = self.clone().map(&mut Plain).states(given, problem);
                self.joined(inputs, Tensor::from_inner(states), problem)
            }
            false => self.states(given, problem),
        };
        let (deter, logits) = (problem.deter, problem.logits());
        [
            states.clone().narrow(2, 0, deter),
            states.clone().narrow(2, deter, logits),
            states.narrow(2, deter + logits, logits),
        ]
    }

    /// The states with gradients to everything that they were made of; see [`crate::ops::rssm::sequence`].
    fn joined(&self, inputs: Inputs, states: Tensor<3>, problem: Problem) -> Tensor<3> {
        let Problem {
            batch,
            steps,
            deter,
            blocks,
            ..
        } = problem;
        let logits = problem.logits();
        let after = |from: usize, width: usize| states.clone().narrow(2, from, width);
        let before = |first: &Tensor<2>, after: Tensor<3>| -> Tensor<3> {
            let first = first.clone().detach().unsqueeze_dim(1);
            let before = match steps {
                1 => first,
                _ => Tensor::cat(vec![first, after.narrow(1, 0, steps - 1)], 1),
            };
            match &inputs.reset {
                Some(reset) => {
                    let mask: Tensor<3, Bool> = reset.clone().unsqueeze_dim(2);
                    let shape = before.dims();
                    before.mask_fill(mask.expand(shape), 0.0)
                }
                None => before,
            }
        };
        let (d, s) = (after(0, deter), after(deter, logits));
        let d_before = before(&inputs.state.deter, d.clone());
        let s_before = before(&inputs.state.stoch, s);
        let of_deter = linear(&self.deter_input, d_before.clone());
        let [e_1, normal_1, y_1] = normalized(&self.deter_norm, of_deter);
        let of_stoch = linear(&self.stoch_input, s_before);
        let [e_2, normal_2, y_2] = normalized(&self.stoch_norm, of_stoch);
        let dense = vec![y_1.clone().detach(), y_2.clone().detach(), inputs.actions];
        let dense = linear(&self.hidden_inputs, Tensor::cat(dense, 2));
        let rows: Tensor<2> = d_before.clone().reshape([batch * steps, deter]);
        let own = self.hidden_blocks.forward(to_blocks(rows, blocks));
        let x = from_blocks(own) + dense.reshape([batch * steps, deter]);
        let x_normal = self.hidden_norm.forward(x.clone());
        let y = silu_blocks(x_normal.clone(), blocks);
        let gates = self.gates.forward(y.clone().detach());
        let of_d = linear(&self.posterior_deter, d) + inputs.tokens;
        let [p, p_normal, y_p] = normalized(&self.posterior_norm, of_d);
        let l = linear(&self.posterior_logits, y_p.clone().detach());
        let cuts = RssmCuts {
            deter: y_1.into_dispatch(),
            stoch: y_2.into_dispatch(),
            hidden: y.into_dispatch(),
            gates: gates.clone().into_dispatch(),
            posterior: y_p.into_dispatch(),
            logits: l.into_dispatch(),
            d0: inputs.state.deter.into_dispatch(),
            s0: inputs.state.stoch.into_dispatch(),
        };
        let reset = inputs.reset.map(|reset| {
            let reset = plain(reset.float()).cast(FloatDType::from(states.dtype()));
            Tensor::<2>::from_inner(reset)
        });
        let one_launch = self.one_launch_missing(batch).is_none();
        let saved = RssmSaved {
            before: d_before.into_dispatch(),
            reset: Maybe::from_option(reset.map(Tensor::into_dispatch)),
            deter: e_1.into_dispatch(),
            deter_normal: normal_1.into_dispatch(),
            stoch: e_2.into_dispatch(),
            stoch_normal: normal_2.into_dispatch(),
            hidden: x.into_dispatch(),
            hidden_normal: x_normal.into_dispatch(),
            gates: gates.into_dispatch(),
            posterior: p.into_dispatch(),
            posterior_normal: p_normal.into_dispatch(),
        };
        Tensor::from_dispatch(<Dispatch as RssmSequenceOps>::rssm_states(
            states.into_dispatch(),
            cuts,
            saved,
            self.weights(),
            problem,
            one_launch,
        ))
    }
}
