//! The checks of arguments.

use burn::tensor::{Int, Tensor};
use riverrun_kernels::random::KEY;

use super::{Rssm, RssmState};
use crate::Error;
use crate::ops::support::checks;

impl Rssm {
    /// Refuses actions, a key or a state that do not go with each other and with the weights; `[B, T]` are the sizes of a run.
    pub(super) fn check(
        &self,
        [batch, steps]: [usize; 2],
        actions: &Tensor<3>,
        key: &Tensor<1, Int>,
        state: Option<&RssmState>,
    ) -> Result<(), Error> {
        let weight = self.action_input.weight.val();
        checks::supported("the weights", &weight.device(), weight.dtype())?;
        let expected = [batch, steps, weight.dims()[0]];
        checks::fits("actions", &weight, actions, &expected)?;
        checks::shape("key", &[KEY], &key.dims())?;
        checks::device("key", &weight.device(), &key.device())?;
        if let Some(state) = state {
            let logits = self.stoch * self.classes;
            checks::fits("deter", &weight, &state.deter, &[batch, self.deter])?;
            checks::fits("stoch", &weight, &state.stoch, &[batch, logits])?;
        }
        Ok(())
    }
}
