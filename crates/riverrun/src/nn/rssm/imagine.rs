//! Imagination: states drawn from the prior, without observations.

use burn::tensor::{FloatDType, Int, Tensor};

use super::observe::shape;
use super::{Rssm, RssmState};
use crate::Error;
use crate::ops::support::checks;

/// The random-number stream of imagination.
const STREAM: u32 = 1;

/// Imagined states.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Imagined {
    /// Deterministic states, `[B, T, deter]`.
    pub deter: Tensor<3>,
    /// Samples of the prior, `[B, T, stoch · classes]`.
    pub stoch: Tensor<3>,
    /// Logits of the prior, `[B, T, stoch · classes]`.
    pub prior_logits: Tensor<3>,
    /// The actions taken, `[B, T, d_action]`.
    pub actions: Tensor<3>,
    /// The state after the last step.
    pub last: RssmState,
}

impl Imagined {
    /// Both parts of every state, `[B, T, deter + stoch · classes]`.
    pub fn features(&self) -> Tensor<3> {
        Tensor::cat(vec![self.deter.clone(), self.stoch.clone()], 2)
    }
}

impl Rssm {
    /// Predicts the states that follow under the actions `[B, T, d_action]`, drawing from the prior with the random numbers of
    /// `key`, `[4]`.
    ///
    /// # Panics
    /// Where [`try_imagine`](Self::try_imagine) returns an error.
    pub fn imagine(&self, actions: Tensor<3>, key: Tensor<1, Int>, state: RssmState) -> Imagined {
        self.try_imagine(actions, key, state)
            .unwrap_or_else(|error| panic!("RSSM: {error}"))
    }

    /// [`imagine`](Self::imagine).
    ///
    /// # Errors
    /// Shapes that do not fit together; a dtype that the device lacks, `f64` on a GPU among them.
    pub fn try_imagine(
        &self,
        actions: Tensor<3>,
        key: Tensor<1, Int>,
        state: RssmState,
    ) -> Result<Imagined, Error> {
        let [batch, steps, _] = actions.dims();
        let [d_action, _] = self.action_input.weight.dims();
        shape("actions", [batch, steps, d_action], actions.dims())?;
        checks::supported("actions", &actions.device(), actions.dtype())?;
        self.check_state(batch, &state)?;
        let encoded = self.encode_actions(actions.clone());
        let at = |t: usize| -> Tensor<2> { encoded.clone().narrow(1, t, 1).squeeze_dim(1) };
        Ok(self.roll(steps, key, state, actions, |t, _| at(t)))
    }

    /// Imagines `steps` steps, taking in each state the actions `[B, d_action]` that `policy` returns for the step's index and
    /// the state.
    ///
    /// # Panics
    /// If a state or an action has the wrong shape.
    pub fn imagine_with(
        &self,
        mut policy: impl FnMut(usize, &RssmState) -> Tensor<2>,
        steps: usize,
        key: Tensor<1, Int>,
        state: RssmState,
    ) -> Imagined {
        let [batch, _] = state.deter.dims();
        self.check_state(batch, &state)
            .unwrap_or_else(|error| panic!("RSSM: {error}"));
        let [d_action, _] = self.action_input.weight.dims();
        let mut actions = Vec::with_capacity(steps);
        let none = Tensor::<3>::zeros([batch, 0, d_action], &state.deter.device())
            .cast(FloatDType::from(state.deter.dtype()));
        let mut imagined = self.roll(steps, key, state, none, |t, state| {
            let action = policy(t, state);
            assert_eq!(action.dims(), [batch, d_action], "the policy's action");
            actions.push(action.clone());
            self.encode_actions(action)
        });
        if steps > 0 {
            imagined.actions = Tensor::stack(actions, 1);
        }
        imagined
    }

    fn check_state(&self, batch: usize, state: &RssmState) -> Result<(), Error> {
        shape("deter", [batch, self.deter], state.deter.dims())?;
        let logits = self.stoch * self.classes;
        shape("stoch", [batch, logits], state.stoch.dims())
    }

    fn roll(
        &self,
        steps: usize,
        key: Tensor<1, Int>,
        mut state: RssmState,
        actions: Tensor<3>,
        mut encoded: impl FnMut(usize, &RssmState) -> Tensor<2>,
    ) -> Imagined {
        let [batch, _] = state.deter.dims();
        if steps == 0 {
            let dtype = FloatDType::from(state.deter.dtype());
            let device = state.deter.device();
            let empty = |width| Tensor::<3>::zeros([batch, 0, width], &device).cast(dtype);
            let logits = self.stoch * self.classes;
            return Imagined {
                deter: empty(self.deter),
                stoch: empty(logits),
                prior_logits: empty(logits),
                actions,
                last: state,
            };
        }
        let noise = self.noise(key, STREAM, [steps, batch], &state.deter);
        let (mut deters, mut stochs, mut priors) = (vec![], vec![], vec![]);
        for t in 0..steps {
            let action = encoded(t, &state);
            let deter = self.next(&state, action);
            let prior = self.prior(deter.clone());
            let stoch = self.sample(prior.clone(), &noise, t);
            deters.push(deter.clone());
            stochs.push(stoch.clone());
            priors.push(prior);
            state = RssmState::new(deter, stoch);
        }
        Imagined {
            deter: Tensor::stack(deters, 1),
            stoch: Tensor::stack(stochs, 1),
            prior_logits: Tensor::stack(priors, 1),
            actions,
            last: state,
        }
    }
}
