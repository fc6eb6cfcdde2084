//! The recurrent state-space model of DreamerV3: a world model with a deterministic and a stochastic state.

mod block_linear;
mod config;
mod dynamics;
mod imagine;
mod loss;
mod observe;
mod sample;
mod state;

use burn::module::Module;
use burn::nn::Linear;

use super::RmsNorm;

pub use block_linear::BlockLinear;
pub use config::RssmConfig;
pub use imagine::Imagined;
pub use loss::KlLoss;
pub use observe::Observed;
pub use state::RssmState;

/// The recurrent state-space model of DreamerV3.
///
/// The state is a deterministic vector `d` of `deter` numbers and a stochastic one `s` of `stoch` one-hot vectors of `classes`.
/// With `n(x) = silu(RMSNorm(x))`, `a` an action and `x` the tokens of an observation, a step is
///
/// ```text
/// e       = [n(L d) ; n(L s) ; n(L a / max(1, |a|))]
/// q       = n(B d + L e)                             B: block-diagonal
/// r, c, u = B q, in each block
/// d'      = σ(u - 1) ∘ tanh(σ(r) ∘ c) + (1 - σ(u - 1)) ∘ d
/// prior     logits = L n(L n(L d'))                  posterior logits = L n(L [d' ; x])
/// p       = 0.99 softmax(logits) + 0.01 / classes    s' ~ p
/// ```
///
/// [`observe`](Self::observe) draws from the posterior, [`imagine`](Self::imagine) from the prior. Samples are one-hot, and the
/// gradient passes to `p` as if they were `p`. Random numbers are functions of a key, see [`ops::uniform`](crate::ops::uniform):
/// the same ones on every device, and other ones in a recorded step once the key's tensor has been refilled.
///
/// All that does not depend on the state is computed for all steps at once: the products of tokens and actions, the random
/// numbers, and the prior of an observation.
///
/// Source: Hafner et al., *Mastering Diverse Domains through World Models* (2023), section "World model learning" and the
/// authors' `rssm.py`.
#[derive(Module, Debug)]
pub struct Rssm {
    /// `[deter, hidden]`.
    pub deter_input: Linear,
    /// Of the deterministic state's projection.
    pub deter_norm: RmsNorm,
    /// `[stoch · classes, hidden]`.
    pub stoch_input: Linear,
    /// Of the stochastic state's projection.
    pub stoch_norm: RmsNorm,
    /// `[d_action, hidden]`.
    pub action_input: Linear,
    /// Of the action's projection.
    pub action_norm: RmsNorm,
    /// `B d`.
    pub hidden_blocks: BlockLinear,
    /// `L e`.
    pub hidden_inputs: Linear,
    /// Of `B d + L e`.
    pub hidden_norm: RmsNorm,
    /// `[deter, 3 deter]` in blocks: reset, candidate, update.
    pub gates: BlockLinear,
    /// `[deter, hidden]`, then `[hidden, hidden]`.
    pub prior_layers: Vec<Linear>,
    /// One after each of them.
    pub prior_norms: Vec<RmsNorm>,
    /// `[hidden, stoch · classes]`.
    pub prior_logits: Linear,
    /// The rows of `d'` of the posterior's first layer.
    pub posterior_deter: Linear,
    /// The rows of the tokens, with the bias.
    pub posterior_tokens: Linear,
    /// Of the sum of the two.
    pub posterior_norm: RmsNorm,
    /// `[hidden, stoch · classes]`.
    pub posterior_logits: Linear,
    /// Numbers of the deterministic state.
    #[module(skip)]
    pub deter: usize,
    /// One-hot vectors of the stochastic state.
    #[module(skip)]
    pub stoch: usize,
    /// Classes of each.
    #[module(skip)]
    pub classes: usize,
    /// The part of the uniform distribution in every categorical.
    #[module(skip)]
    pub unimix: f64,
}

impl Rssm {
    /// Numbers of a state as a flat vector: `deter + stoch · classes`.
    pub fn d_features(&self) -> usize {
        self.deter + self.stoch * self.classes
    }
}
