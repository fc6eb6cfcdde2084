//! The answers to a window of real steps.

use super::Controller;
use crate::hybrid::monitor::Recovery;

impl Controller {
    /// Changes the state as an answer asks.
    pub(super) fn recover(&mut self, recovery: Recovery) {
        let state = &mut self.state;
        match recovery {
            Recovery::Continue => state.shorten = (state.shorten * 1.1).min(1.0),
            Recovery::ReducePredictions => state.shorten = (state.shorten * 0.5).max(0.1),
            Recovery::ForceFull => state.phases.force_full(2),
            Recovery::SkipBatch => {
                state.counts.skipped += 1;
                self.take_back();
            }
            Recovery::RollBack => self.take_back(),
            Recovery::RaiseConfidence => {
                state.confidence.raise();
                self.take_back();
            }
            Recovery::ResetPredictor => {
                self.predictor.reset();
                state.judge.forget();
                state.confidence.forget();
                state.confidence.raise();
                self.take_back();
            }
            Recovery::Abort => {}
        }
    }

    /// Returns to the state before the last prediction, or before the window. Each failure in a row doubles the number of full
    /// phases that follow.
    fn take_back(&mut self) {
        let state = &mut self.state;
        if let Some(pending) = state.pending.take() {
            state.bandit.learn(pending.arm, &pending.context, -1.0);
            state.confidence.observe_error(1.0);
        }
        state.moved = true;
        state.phases.restart(&self.config);
        state
            .phases
            .force_full(2 << state.monitor.failures().min(5));
    }
}
