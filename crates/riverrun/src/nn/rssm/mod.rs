//! The recurrent state-space model of DreamerV3: a world model with a deterministic and a stochastic state.

mod block_linear;
mod checks;
mod config;
mod dynamics;
mod imagine;
mod loss;
mod observe;
mod sample;
mod sequence;
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
/// `observe` runs in one launch on an NVIDIA GPU of compute capability 8.0, with blocks, `hidden` and `stoch · classes` of
/// multiples of 16, and 2, 4, 8 or a multiple of 16 classes.
///
/// Everything that does not depend on the state is computed for all steps at once: the products of tokens and actions, the
/// random numbers, and the prior's logits.
///
/// Source: Hafner et al., *Mastering Diverse Domains through World Models* (2023), section "World model learning" and the
/// authors' `rssm.py`.
#[derive(Module, Debug)]
pub struct Rssm {
    /// Projection of the deterministic state, `[deter, hidden]`.
    pub deter_input: Linear,
    /// The norm after `deter_input`.
    pub deter_norm: RmsNorm,
    /// Projection of the stochastic state, `[stoch · classes, hidden]`.
    pub stoch_input: Linear,
    /// The norm after `stoch_input`.
    pub stoch_norm: RmsNorm,
    /// Projection of the action, `[d_action, hidden]`.
    pub action_input: Linear,
    /// The norm after `action_input`.
    pub action_norm: RmsNorm,
    /// The block-diagonal layer `B d`.
    pub hidden_blocks: BlockLinear,
    /// The dense layer `L e`.
    pub hidden_inputs: Linear,
    /// The norm of `B d + L e`.
    pub hidden_norm: RmsNorm,
    /// The gates, `[deter, 3 deter]` in blocks: reset, candidate, update.
    pub gates: BlockLinear,
    /// The prior's dense layers: `[deter, hidden]`, then `[hidden, hidden]`.
    pub prior_layers: Vec<Linear>,
    /// The norm after each of `prior_layers`.
    pub prior_norms: Vec<RmsNorm>,
    /// The prior's last layer, `[hidden, stoch · classes]`.
    pub prior_logits: Linear,
    /// The posterior's first layer: the rows of `d'`.
    pub posterior_deter: Linear,
    /// The posterior's first layer: the rows of the tokens, and the bias.
    pub posterior_tokens: Linear,
    /// The norm of the sum of both.
    pub posterior_norm: RmsNorm,
    /// The posterior's last layer, `[hidden, stoch · classes]`.
    pub posterior_logits: Linear,
    /// Features of the deterministic state.
    #[module(skip)]
    pub deter: usize,
    /// One-hot vectors in the stochastic state.
    #[module(skip)]
    pub stoch: usize,
    /// Classes of each one-hot vector.
    #[module(skip)]
    pub classes: usize,
    /// Weight of the uniform distribution mixed into every categorical.
    #[module(skip)]
    pub unimix: f64,
}

impl Rssm {
    /// Features of a state as a flat vector: `deter + stoch · classes`.
    pub fn d_features(&self) -> usize {
        self.deter + self.stoch * self.classes
    }
}
