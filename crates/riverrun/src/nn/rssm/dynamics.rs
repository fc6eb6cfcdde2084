//! The deterministic step.

use burn::tensor::Tensor;
use burn::tensor::activation::{sigmoid, silu, tanh};

use super::block_linear::{from_blocks, to_blocks};
use super::{Rssm, RssmState};
use crate::nn::{RmsNorm, linear};

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
        let before = to_blocks(deter, blocks);
        let own = from_blocks(self.hidden_blocks.forward(before.clone()));
        let x = activate(&self.hidden_norm, own + dense);
        let gates = self.gates.forward(to_blocks(x, blocks));
        let width = self.deter / blocks;
        let part = |n: usize| gates.clone().narrow(2, n * width, width);
        let update = sigmoid(part(2) - 1.0);
        let candidate = tanh(sigmoid(part(0)) * part(1));
        from_blocks(update.clone() * candidate + (-update + 1.0) * before)
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
