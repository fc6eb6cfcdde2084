//! Observation: states drawn from the posterior.

use burn::tensor::{Bool, FloatDType, Int, Tensor};

use super::dynamics::activate;
use super::state::beside;
use super::{KlLoss, Rssm, RssmState};
use crate::nn::linear;
use crate::ops::support::checks;
use crate::{Error, Sequence};

/// The random-number stream of observation.
const STREAM: u32 = 0;

/// The states inferred from observations.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Observed {
    /// Deterministic states, `[B, T, deter]`.
    pub deter: Tensor<3>,
    /// Samples of the posterior, `[B, T, stoch · classes]`.
    pub stoch: Tensor<3>,
    /// Logits of the posterior, `[B, T, stoch · classes]`.
    pub posterior_logits: Tensor<3>,
    /// Logits of the prior, `[B, T, stoch · classes]`.
    pub prior_logits: Tensor<3>,
    /// The state after the last step.
    pub last: RssmState,
}

impl Observed {
    /// Both parts of every state, `[B, T, deter + stoch · classes]`.
    pub fn features(&self) -> Tensor<3> {
        beside(&self.deter, &self.stoch)
    }

    /// The state after step `t` of every sequence.
    ///
    /// # Panics
    /// If there is no such step.
    pub fn state(&self, t: usize) -> RssmState {
        let at = |x: &Tensor<3>| x.clone().narrow(1, t, 1).squeeze_dim(1);
        RssmState::new(at(&self.deter), at(&self.stoch))
    }

    /// The divergence of prior and posterior, see [`KlLoss`].
    pub fn kl(&self, model: &Rssm, free_nats: f64) -> KlLoss {
        model.kl(
            self.posterior_logits.clone(),
            self.prior_logits.clone(),
            free_nats,
        )
    }
}

/// Inputs of the steps.
#[derive(Clone)]
pub(super) struct Inputs {
    /// Encoded actions, `[B, T, hidden]`.
    pub actions: Tensor<3>,
    /// The posterior's first layer of the tokens, `[B, T, hidden]`.
    pub tokens: Tensor<3>,
    /// `[T, B, stoch, classes]`.
    pub noise: Tensor<4>,
    /// `[B, T]`.
    pub reset: Option<Tensor<2, Bool>>,
    /// The state before the first step.
    pub state: RssmState,
}

impl Rssm {
    /// Runs over sequences of observations, drawing the stochastic states from the posterior.
    ///
    /// # Arguments
    /// - `tokens`: encoded observations, `[B, T, d_tokens]`.
    /// - `actions`: the actions that led to the observations, `[B, T, d_action]`.
    /// - `key`: the key of the random numbers, `[4]`. Calls with the same key draw the same numbers.
    /// - `sequence`: the initial state, zero if absent, and resets `[B, T]`: at a reset step the state and the action are taken
    ///   as 0, whatever they are; a NaN ends there.
    ///
    /// Gradients flow to every input, the initial state included. All tensors have the dtype of the weights; categoricals are
    /// computed in f32.
    ///
    /// # Panics
    /// For shapes, dtypes or devices that do not fit together and to the weights; weights in a dtype that the device lacks, `f64`
    /// on a GPU among them; lengths in `sequence`; more than `2^32` random numbers.
    pub fn observe(
        &self,
        tokens: Tensor<3>,
        actions: Tensor<3>,
        key: Tensor<1, Int>,
        sequence: Sequence<RssmState>,
    ) -> Observed {
        self.checked_observe(tokens, actions, key, sequence)
            .unwrap_or_else(|error| panic!("RSSM: {error}"))
    }

    #[doc(hidden)]
    pub fn checked_observe(
        &self,
        tokens: Tensor<3>,
        actions: Tensor<3>,
        key: Tensor<1, Int>,
        sequence: Sequence<RssmState>,
    ) -> Result<Observed, Error> {
        self.observed(tokens, actions, key, sequence, Self::observe_sequence)
    }

    /// [`observe`](Self::observe) with a graph of every step, which other forms are held against.
    ///
    /// # Errors
    /// Where `observe` panics.
    #[cfg(feature = "check")]
    pub fn observe_by_steps(
        &self,
        tokens: Tensor<3>,
        actions: Tensor<3>,
        key: Tensor<1, Int>,
        sequence: Sequence<RssmState>,
    ) -> Result<Observed, Error> {
        self.observed(tokens, actions, key, sequence, Self::observe_steps)
    }

    fn observed(
        &self,
        tokens: Tensor<3>,
        actions: Tensor<3>,
        key: Tensor<1, Int>,
        sequence: Sequence<RssmState>,
        run: impl Fn(&Self, Inputs) -> [Tensor<3>; 3],
    ) -> Result<Observed, Error> {
        sequence.check_undivided("an RSSM")?;
        let [batch, steps, _] = tokens.dims();
        let weight = self.posterior_tokens.weight.val();
        let expected = [batch, steps, weight.dims()[0]];
        checks::fits("tokens", &weight, &tokens, &expected)?;
        self.check([batch, steps], &actions, &key, sequence.state.as_ref())?;
        checks::reset(&tokens, sequence.reset.as_ref(), [batch, steps])?;
        if sequence.lengths.is_some() {
            return Err(Error::Unsupported(
                "an RSSM takes resets and no lengths: pad sequences and mask their losses".into(),
            ));
        }
        let state = match sequence.state {
            Some(state) => state,
            None => self.initial(batch, &tokens.device(), FloatDType::from(tokens.dtype())),
        };
        let tokens = linear(&self.posterior_tokens, tokens);
        if batch * steps == 0 {
            let [deter, prior_logits] = self.nothing(tokens.clone());
            let posterior_logits = linear(&self.posterior_logits, tokens);
            return Ok(Observed {
                deter,
                stoch: posterior_logits.clone(),
                posterior_logits,
                prior_logits,
                last: state,
            });
        }
        let reset = sequence.reset;
        let actions = cleared(actions, reset.clone().map(|reset| reset.unsqueeze_dim(2)));
        let inputs = Inputs {
            actions: self.encode_actions(actions),
            noise: self.noise(key, STREAM, [steps, batch], &state.deter)?,
            tokens,
            reset,
            state,
        };
        let [deter, stoch, posterior_logits] = run(self, inputs);
        let last = |x: &Tensor<3>| x.clone().narrow(1, steps - 1, 1).squeeze_dim(1);
        Ok(Observed {
            prior_logits: self.prior(deter.clone()),
            last: RssmState::new(last(&deter), last(&stoch)),
            deter,
            stoch,
            posterior_logits,
        })
    }

    /// Deterministic states and the prior's logits where there are no steps or no sequences, from an empty `[B, T, hidden]`: made
    /// of it, so that a backward pass through them finds a graph.
    pub(super) fn nothing(&self, inner: Tensor<3>) -> [Tensor<3>; 2] {
        let [batch, steps, _] = inner.dims();
        let deter = inner.reshape([batch, steps, self.deter]);
        [deter.clone(), self.prior(deter)]
    }

    /// Deterministic states, samples and logits of all steps, one after the other.
    pub(super) fn observe_steps(&self, inputs: Inputs) -> [Tensor<3>; 3] {
        let mut state = inputs.state;
        let [_, steps, _] = inputs.actions.dims();
        let at =
            |x: &Tensor<3>, t: usize| -> Tensor<2> { x.clone().narrow(1, t, 1).squeeze_dim(1) };
        let (mut deters, mut stochs, mut posteriors) = (vec![], vec![], vec![]);
        for t in 0..steps {
            let reset = || inputs.reset.clone().map(|reset| reset.narrow(1, t, 1));
            state = RssmState::new(cleared(state.deter, reset()), cleared(state.stoch, reset()));
            let deter = self.next(&state, at(&inputs.actions, t));
            let inner = linear(&self.posterior_deter, deter.clone()) + at(&inputs.tokens, t);
            let inner = activate(&self.posterior_norm, inner);
            let posterior = linear(&self.posterior_logits, inner);
            let stoch = self.sample(posterior.clone(), &inputs.noise, t);
            deters.push(deter.clone());
            stochs.push(stoch.clone());
            posteriors.push(posterior);
            state = RssmState::new(deter, stoch);
        }
        [deters, stochs, posteriors].map(|steps| Tensor::stack(steps, 1))
    }
}

/// `x` with zeros where the mask is true, whatever was there.
pub(super) fn cleared<const D: usize>(x: Tensor<D>, mask: Option<Tensor<D, Bool>>) -> Tensor<D> {
    match mask {
        Some(mask) => {
            let shape = x.dims();
            x.mask_fill(mask.expand(shape), 0.0)
        }
        None => x,
    }
}
