//! The deterministic step.

use burn::tensor::Tensor;

use super::block_linear::{from_blocks, to_blocks};
use super::{Rssm, RssmState};
use crate::nn::{RmsNorm, linear};
use crate::ops::rssm::{gated_step, silu, silu_blocks};

/// `silu(RMSNorm(x))`.
pub(super) fn activate<const D: usize>(norm: &RmsNorm, x: Tensor<D>) -> Tensor<D> {
    silu(norm.forward(x))
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
        let inputs = vec![
            activate(&self.deter_norm, linear(&self.deter_input, deter.clone())),
            activate(
                &self.stoch_norm,
                linear(&self.stoch_input, state.stoch.clone()),
            ),
            action,
        ];
        let dense = linear(&self.hidden_inputs, Tensor::cat(inputs, 1));
        let own = self.hidden_blocks.forward(to_blocks(deter.clone(), blocks));
        let x = self.hidden_norm.forward(from_blocks(own) + dense);
        let gates = self.gates.forward(silu_blocks(x, blocks));
        gated_step(gates, deter)
    }

    /// The prior's logits `[.., stoch · classes]` of deterministic states `[.., deter]`.
    pub fn prior<const D: usize>(&self, deter: Tensor<D>) -> Tensor<D> {
        let mut x = deter;
        for (layer, norm) in self.prior_layers.iter().zip(&self.prior_norms) {
            x = activate(norm, linear(layer, x));
        }
        linear(&self.prior_logits, x)
    }
}
