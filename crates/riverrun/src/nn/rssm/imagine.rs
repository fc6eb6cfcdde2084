//! Imagination: states drawn from the prior, without observations.

use burn::tensor::{Int, Tensor};

use super::state::beside;
use super::{Rssm, RssmState};
use crate::Error;
use crate::nn::linear;

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
        beside(&self.deter, &self.stoch)
    }
}

impl Rssm {
    /// Predicts the states that follow under the actions `[B, T, d_action]`, drawing from the prior with the random numbers of
    /// `key`, `[4]`.
    ///
    /// # Panics
    /// For shapes, dtypes or devices that do not fit together and to the weights; weights in a dtype that the device lacks, `f64`
    /// on a GPU among them; more than `2^32` random numbers.
    pub fn imagine(&self, actions: Tensor<3>, key: Tensor<1, Int>, state: RssmState) -> Imagined {
        self.checked_imagine(actions, key, state)
            .unwrap_or_else(|error| panic!("RSSM: {error}"))
    }

    #[doc(hidden)]
    pub fn checked_imagine(
        &self,
        actions: Tensor<3>,
        key: Tensor<1, Int>,
        state: RssmState,
    ) -> Result<Imagined, Error> {
        let [batch, steps, _] = actions.dims();
        self.check([batch, steps], &actions, &key, Some(&state))?;
        if batch * steps == 0 {
            return Ok(self.imagine_nothing(actions, state));
        }
        // `[T, B, hidden]`: a step's rows lie together.
        let encoded = self.encode_actions(actions.clone().swap_dims(0, 1));
        let at = |t: usize| -> Tensor<2> { encoded.clone().narrow(0, t, 1).squeeze_dim(0) };
        self.roll(steps, key, state, actions, |t, _| at(t))
    }

    /// Imagines `steps` steps, taking in each state the actions `[B, d_action]` that `policy` returns for the step's index and
    /// the state. Without sequences the policy is not asked.
    ///
    /// # Panics
    /// If a key, a state or an action does not fit; for more than `2^32` random numbers.
    pub fn imagine_with(
        &self,
        mut policy: impl FnMut(usize, &RssmState) -> Tensor<2>,
        steps: usize,
        key: Tensor<1, Int>,
        state: RssmState,
    ) -> Imagined {
        let [batch, _] = state.deter.dims();
        let weight = self.action_input.weight.val();
        let [d_action, _] = weight.dims();
        // No actions are known yet.
        let known = if batch == 0 { steps } else { 0 };
        let none = Tensor::<3>::zeros([batch, known, d_action], (&weight.device(), weight.dtype()));
        self.check([batch, known], &none, &key, Some(&state))
            .unwrap_or_else(|error| panic!("RSSM: {error}"));
        if batch * steps == 0 {
            return self.imagine_nothing(none, state);
        }
        let mut actions = Vec::with_capacity(steps);
        let imagined = self.roll(steps, key, state, none, |t, state| {
            let action = policy(t, state);
            assert_eq!(action.dims(), [batch, d_action], "the policy's action");
            actions.push(action.clone());
            self.encode_actions(action)
        });
        let mut imagined = imagined.unwrap_or_else(|error| panic!("RSSM: {error}"));
        imagined.actions = Tensor::stack(actions, 1);
        imagined
    }

    /// The states of no steps or no sequences.
    fn imagine_nothing(&self, actions: Tensor<3>, state: RssmState) -> Imagined {
        let inner = linear(&self.action_input, actions.clone());
        let [deter, prior_logits] = self.nothing(inner);
        Imagined {
            deter,
            stoch: prior_logits.clone(),
            prior_logits,
            actions,
            last: state,
        }
    }

    fn roll(
        &self,
        steps: usize,
        key: Tensor<1, Int>,
        mut state: RssmState,
        actions: Tensor<3>,
        mut encoded: impl FnMut(usize, &RssmState) -> Tensor<2>,
    ) -> Result<Imagined, Error> {
        let [batch, _] = state.deter.dims();
        let noise = self.noise(key, STREAM, [steps, batch], &state.deter)?;
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
        Ok(Imagined {
            deter: Tensor::stack(deters, 1),
            stoch: Tensor::stack(stochs, 1),
            prior_logits: Tensor::stack(priors, 1),
            actions,
            last: state,
        })
    }
}
