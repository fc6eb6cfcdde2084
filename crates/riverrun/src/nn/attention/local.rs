//! Local attention.

use burn::config::Config;
use burn::module::Module;
use burn::tensor::{Device, Tensor};

use super::{AttentionState, MultiHeadAttention, MultiHeadAttentionConfig, Rotary};
use crate::Error;
use crate::Sequence;
use crate::nn::Recurrent;

/// Configuration of [`LocalAttention`].
#[derive(Config, Debug)]
#[non_exhaustive]
pub struct LocalAttentionConfig {
    /// Features of input and output.
    pub d_model: usize,
    /// Heads of the queries, a divisor of `d_model`.
    pub heads: usize,
    /// Steps that a step sees, its own among them.
    pub window: usize,
    /// Heads of keys and values, a divisor of `heads`.
    #[config(default = 1)]
    pub key_heads: usize,
    /// The base of the rotary positions, which turn the first half of each head's channels.
    #[config(default = 10_000.0)]
    pub rotary_base: f64,
}

/// Local attention, as Griffin mixes it with recurrence: causal over a window of steps, one head of keys and values for all
/// queries, rotary positions on half of each head's channels, a bias on the last projection only. Its state has constant size.
///
/// Source: De et al., *Griffin* (2024), section 2.3; the rotated half: the configuration of RecurrentGemma.
#[derive(Module, Debug)]
pub struct LocalAttention {
    /// The attention with its window.
    pub attention: MultiHeadAttention,
}

impl LocalAttentionConfig {
    /// A layer with fresh weights.
    ///
    /// # Panics
    /// As [`MultiHeadAttentionConfig::init`].
    pub fn init(&self, device: &Device) -> LocalAttention {
        let half = self.d_model / self.heads.max(1) / 2;
        let rotary = Rotary::new(half - half % 2).with_base(self.rotary_base);
        let attention = MultiHeadAttentionConfig::new(self.d_model, self.heads)
            .with_key_heads(Some(self.key_heads))
            .with_window(Some(self.window))
            .with_rotary(Some(rotary))
            .with_bias(false)
            .init(device);
        LocalAttention { attention }
    }
}

impl Recurrent for LocalAttention {
    type State = AttentionState;

    crate::run_checked!();

    fn checked_run(
        &self,
        x: Tensor<3>,
        sequence: Sequence<AttentionState>,
    ) -> Result<(Tensor<3>, AttentionState), Error> {
        self.attention.checked_run(x, sequence)
    }
}
