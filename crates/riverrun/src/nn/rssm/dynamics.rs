//! The deterministic step.

use burn::tensor::Tensor;

use super::block_linear::{from_blocks, to_blocks};
use super::{Rssm, RssmState};
use crate::nn::{RmsNorm, linear};
use crate::ops::rssm::{gated_step, norm_silu, silu, step_inputs};

/// `silu(RMSNorm(x))`.
pub(super) fn activate<const D: usize>(norm: &RmsNorm, x: Tensor<D>) -> Tensor<D> {
    let shape = x.dims();
    if shape.contains(&0) {
        return silu(norm.forward(x));
    }
    let width = shape[D - 1];
    let rows = shape[..D - 1].iter().product::<usize>();
    norm_silu(x.reshape([rows, width]), None, weights(norm)).reshape(shape)
}

/// The weights and the epsilon of a norm.
fn weights(norm: &RmsNorm) -> (Tensor<1>, f64) {
    (norm.gamma.val(), norm.epsilon)
}

impl Rssm {
    /// Encodes actions `[.., d_action]`: `n(L a / max(1, |a|))`.
    pub(super) fn encode_actions<const D: usize>(&self, actions: Tensor<D>) -> Tensor<D> {
        let scale = actions.clone().detach().abs().clamp_min(1.0);
        activate(
            &self.action_norm,
            linear(&self.action_input, actions / scale),
        )
    }

    /// The next deterministic state `[B, deter]`, from a state and an encoded action `[B, hidden]`.
    pub(super) fn next(&self, state: &RssmState, action: Tensor<2>) -> Tensor<2> {
        let blocks = self.gates.blocks();
        let deter = state.deter.clone();
        let inputs = [
            linear(&self.deter_input, deter.clone()),
            linear(&self.stoch_input, state.stoch.clone()),
            action,
        ];
        let inputs = step_inputs(
            inputs,
            [weights(&self.deter_norm), weights(&self.stoch_norm)],
        );
        let dense = linear(&self.hidden_inputs, inputs);
        let own = self.hidden_blocks.forward(to_blocks(deter.clone(), blocks));
        let x = norm_silu(from_blocks(own), Some(dense), weights(&self.hidden_norm));
        let gates = self.gates.product(to_blocks(x, blocks));
        gated_step(
            gates,
            self.gates.bias.as_ref().map(|bias| bias.val()),
            deter,
        )
    }

    /// The prior's logits `[.., stoch · classes]` of deterministic states `[.., deter]`.
    pub(super) fn prior<const D: usize>(&self, deter: Tensor<D>) -> Tensor<D> {
        let mut x = deter;
        for (layer, norm) in self.prior_layers.iter().zip(&self.prior_norms) {
            x = activate(norm, linear(layer, x));
        }
        linear(&self.prior_logits, x)
    }
}
