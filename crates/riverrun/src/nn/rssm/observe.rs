//! Observation: states drawn from the posterior.

use burn::tensor::{Bool, FloatDType, Int, Tensor};

use super::dynamics::activate;
use super::{KlLoss, Rssm, RssmForm, RssmState};
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
        Tensor::cat(vec![self.deter.clone(), self.stoch.clone()], 2)
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

/// What the steps are made of.
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
    /// `[B, T, 1]`: 0 at a reset, 1 elsewhere.
    pub kept: Option<Tensor<3>>,
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
    ///   as 0.
    ///
    /// Gradients flow to every input, the initial state included. All tensors have the dtype of the weights; categoricals are
    /// computed in f32.
    ///
    /// # Panics
    /// Where [`try_observe`](Self::try_observe) returns an error.
    pub fn observe(
        &self,
        tokens: Tensor<3>,
        actions: Tensor<3>,
        key: Tensor<1, Int>,
        sequence: Sequence<RssmState>,
    ) -> Observed {
        self.try_observe(tokens, actions, key, sequence)
            .unwrap_or_else(|error| panic!("RSSM: {error}"))
    }

    /// [`observe`](Self::observe).
    ///
    /// # Errors
    /// Shapes that do not fit together; a dtype that the device lacks, `f64` on a GPU among them; lengths in `sequence`.
    pub fn try_observe(
        &self,
        tokens: Tensor<3>,
        actions: Tensor<3>,
        key: Tensor<1, Int>,
        sequence: Sequence<RssmState>,
    ) -> Result<Observed, Error> {
        let [batch, steps, _] = tokens.dims();
        let logits = self.stoch * self.classes;
        let [d_tokens, _] = self.posterior_tokens.weight.dims();
        let [d_action, _] = self.action_input.weight.dims();
        shape("tokens", [batch, steps, d_tokens], tokens.dims())?;
        shape("actions", [batch, steps, d_action], actions.dims())?;
        checks::supported("tokens", &tokens.device(), tokens.dtype())?;
        if sequence.lengths.is_some() {
            return Err(Error::Unsupported(
                "an RSSM takes resets and no lengths: pad sequences and mask their losses".into(),
            ));
        }
        let (device, dtype) = (tokens.device(), FloatDType::from(tokens.dtype()));
        let state = match sequence.state {
            Some(state) => state,
            None => self.initial(batch, &device, dtype),
        };
        shape("deter", [batch, self.deter], state.deter.dims())?;
        shape("stoch", [batch, logits], state.stoch.dims())?;
        if let Some(reset) = &sequence.reset {
            shape("reset", [batch, steps], reset.dims())?;
        }
        let reset = sequence.reset;
        if steps == 0 {
            let empty = |width| Tensor::<3>::zeros([batch, 0, width], &device).cast(dtype);
            return Ok(Observed {
                deter: empty(self.deter),
                stoch: empty(logits),
                posterior_logits: empty(logits),
                prior_logits: empty(logits),
                last: state,
            });
        }
        // [B, T, 1]: 0 at a reset step.
        let kept = reset.clone().map(|reset| {
            let kept = reset.bool_not().float().cast(dtype);
            kept.unsqueeze_dim::<3>(2)
        });
        let actions = match &kept {
            Some(kept) => actions * kept.clone(),
            None => actions,
        };
        let inputs = Inputs {
            actions: self.encode_actions(actions),
            tokens: linear(&self.posterior_tokens, tokens),
            noise: self.noise(key, STREAM, [steps, batch], &state.deter),
            reset,
            kept,
            state,
        };
        // No sequences: nothing to launch.
        let form = if batch == 0 {
            RssmForm::Steps
        } else {
            self.form
        };
        let [deter, stoch, posterior_logits] = match form {
            RssmForm::Steps => self.observe_steps(inputs),
            RssmForm::Sequence => self.observe_sequence(inputs),
        };
        let last = |x: &Tensor<3>| x.clone().narrow(1, steps - 1, 1).squeeze_dim(1);
        Ok(Observed {
            prior_logits: self.prior(deter.clone()),
            last: RssmState::new(last(&deter), last(&stoch)),
            deter,
            stoch,
            posterior_logits,
        })
    }

    /// Deterministic states, samples and logits of all steps, one after the other.
    pub(super) fn observe_steps(&self, inputs: Inputs) -> [Tensor<3>; 3] {
        let mut state = inputs.state;
        let [_, steps, _] = inputs.actions.dims();
        let at =
            |x: &Tensor<3>, t: usize| -> Tensor<2> { x.clone().narrow(1, t, 1).squeeze_dim(1) };
        let (mut deters, mut stochs, mut posteriors) = (vec![], vec![], vec![]);
        for t in 0..steps {
            if let Some(kept) = &inputs.kept {
                let kept = at(kept, t);
                state = RssmState::new(state.deter * kept.clone(), state.stoch * kept);
            }
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

pub(super) fn shape<const D: usize>(
    what: &'static str,
    expected: [usize; D],
    found: [usize; D],
) -> Result<(), Error> {
    if expected == found {
        return Ok(());
    }
    Err(Error::Shape {
        what,
        expected: expected.to_vec(),
        found: found.to_vec(),
    })
}
